"""Seconds that `aoext.calibrate` takes for a layer of a model's shape, and for as many as the model has.

    python benchmarks/calibration_time.py --size 1b --layers 1 --algorithm search --algorithm gptq
    python benchmarks/calibration_time.py --size 8b --layers 4 --device cuda --length 2048

Weights and tokens are random, on which no algorithm's time depends, and the vocabulary is small: what the
embedding and the head take is not counted, as calibration leaves both alone. Memory is the peak meanwhile,
the GPU's or on a CPU the process's, with the weights of these layers.
"""

from __future__ import annotations

import json
import time

import click
import torch

import aoext
import llama_models
from aoext.configs.schemes import as_config
from aoext_bench.devices import Device
from aoext_bench.options import MeasuredDeviceType
from schemes import Scheme
from whole_model_run import Peak

VOCABULARY = 1024


def measure(
    size: str,
    layers: int,
    algorithm: str,
    config: aoext.configs.QuantizationConfig,
    data: list[torch.Tensor],
    device: Device,
) -> tuple[float, int | None]:
    """Seconds of these layers, and the peak of memory in bytes."""
    model = llama_models.make(
        size,
        Scheme("bf16"),
        device.device,
        torch.bfloat16,
        0,
        num_hidden_layers=layers,
        vocab_size=VOCABULARY,
    )
    peak = Peak(device)
    begin = time.monotonic()
    aoext.calibrate(model, data, config, algorithm=algorithm, samples=len(data))
    if device.device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - begin, peak.bytes()


@click.command()
@click.option("--size", default="1b", show_default=True, type=click.Choice(list(llama_models.SIZES)))
@click.option("--layers", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--algorithm", "algorithms", multiple=True, default=["gptq"], show_default=True)
@click.option("--scheme", default="int4", show_default=True)
@click.option("--group-size", default=128, show_default=True)
@click.option("--samples", default=128, show_default=True)
@click.option("--length", default=512, show_default=True, help="Tokens of a sample.")
@click.option("--device", type=MeasuredDeviceType(), default="cpu", show_default=True)
def main(
    size: str,
    layers: int,
    algorithms: tuple[str, ...],
    scheme: str,
    group_size: int,
    samples: int,
    length: int,
    device: Device,
) -> None:
    config = as_config("calibration_time", {"scheme": scheme, "group_size": group_size})
    every = llama_models.SIZES[size]["num_hidden_layers"]
    data = [torch.randint(VOCABULARY, (1, length), device=device.device) for _ in range(samples)]
    for algorithm in algorithms:
        seconds, peak = measure(size, layers, algorithm, config, data, device)
        of_layer = seconds / layers
        click.echo(
            json.dumps(
                {
                    "size": size,
                    "scheme": scheme,
                    "algorithm": algorithm,
                    "tokens": samples * length,
                    "seconds_a_layer": round(of_layer, 2),
                    "layers": every,
                    "minutes_of_all": round(of_layer * every / 60, 1),
                    "GB": None if peak is None else round(peak / 1e9, 2),
                }
            )
        )


if __name__ == "__main__":
    main()
