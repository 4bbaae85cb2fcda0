"""Products of experts on an NVIDIA GPU: int4 beside torch's grouped product in bf16 and a loop over experts.

    python benchmarks/grouped.py --tokens 1,8,64,512,4096

Sizes are those of models with experts. Every token goes to as many experts as its model says, by chance, and
calls rotate through several draws, so that weights come from memory. Times are µs behind a kernel of torch's
that writes the activations, whose own time is taken off: medians of replays of CUDA graphs. `×` is how many
times as fast as torch's. The loop knows on the host where rows end, which a model would have to wait for.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F
from torch import Tensor

import aoext
from aoext.operators.calls import ao
from aoext.ops import with_plan
from aoext_bench.clocks import Candidate
from aoext_bench.devices import measured
from aoext_bench.timing import interleaved

BF16, INT8 = torch.bfloat16, torch.int8
GROUP = 128
DRAWS = 8  # of experts, which calls go through


@dataclass(frozen=True)
class Layer:
    """One of a model's products of experts."""

    name: str
    experts: int
    top_k: int
    N: int
    K: int


LAYERS = (
    Layer("Qwen3-30B-A3B, gate and up", 128, 8, 1536, 2048),
    Layer("Qwen3-30B-A3B, down", 128, 8, 2048, 768),
    Layer("Mixtral 8x7B, gate", 8, 2, 14336, 4096),
    Layer("Mixtral 8x7B, down", 8, 2, 4096, 14336),
)


class Measured:
    """A layer's weights and, of a number of tokens, the calls that are compared."""

    def __init__(self, layer: Layer) -> None:
        E, N, K = layer.experts, layer.N, layer.K
        self.layer = layer
        groups = lambda: torch.rand(E, K // GROUP, N, device="cuda", dtype=BF16) * 0.01 + 0.001  # noqa: E731
        self.int4 = (
            torch.randint(-128, 128, (E, N, K // 2), dtype=INT8, device="cuda"),
            groups(),
            groups() - 0.005,
        )
        self.bf16 = torch.randn(E, N, K, device="cuda", dtype=BF16)

    def ends(self, tokens: int) -> list[Tensor]:
        """Where the rows of experts end, of several draws."""
        E, top_k = self.layer.experts, self.layer.top_k
        draws = [torch.rand(tokens, E).topk(top_k).indices.flatten() for _ in range(DRAWS)]
        return [torch.bincount(draw, minlength=E).cumsum(0).to(torch.int32) for draw in draws]

    def candidates(self, tokens: int, tiles: list[str]) -> dict[str, Candidate]:
        x = torch.randn(tokens * self.layer.top_k, self.layer.K, device="cuda", dtype=BF16)
        on_host = self.ends(tokens)
        on_device = [ends.to("cuda") for ends in on_host]
        bounds = [list(itertools.pairwise([0, *ends.tolist()])) for ends in on_host]
        # The draw that is called next, for each candidate.
        turns: dict[str, Any] = {}

        def candidate(name: str, call: Callable[[Tensor, int], Any]) -> Candidate:
            turns[name] = itertools.cycle(range(DRAWS))

            def prepare() -> Callable[[], Any]:
                draw = next(turns[name])
                return lambda: call(x * 1.0, draw)

            return Candidate(prepare, DRAWS)

        def int4(x: Tensor, draw: int) -> Tensor:
            return ao.bf16i4bf16_rowwise_grouped(x, *self.int4, on_device[draw])

        def forced(tile: str) -> Callable[[Tensor, int], Tensor]:
            kernel, *fields = tile.split()
            config = {name: int(value) for name, value in (field.split("=") for field in fields)}

            def call(x: Tensor, draw: int) -> Tensor:
                with with_plan(kernel, **config):
                    return int4(x, draw)

            return call

        def loop(x: Tensor, draw: int) -> list[Tensor]:
            return [
                ao.bf16i4bf16_rowwise(x[begin:end], *(part[e] for part in self.int4))
                for e, (begin, end) in enumerate(bounds[draw])
                if end > begin
            ]

        def of_torch(x: Tensor, draw: int) -> Tensor:
            return F.grouped_mm(x, self.bf16.transpose(1, 2), offs=on_device[draw])

        calls = {"x": lambda x, draw: x, "int4": int4, "torch": of_torch, "loop": loop}
        calls |= {tile: forced(tile) for tile in tiles}
        return {name: candidate(name, call) for name, call in calls.items()}


@click.command()
@click.option("--tokens", default="1,8,64,512,4096", help="Tokens, each of which goes to several experts.")
@click.option("--layers", default="0,1,2,3", help="Which of LAYERS.")
@click.option("--tile", "tiles", multiple=True, help='A plan to force besides: "kernel field=value …".')
@click.option("--seconds", default=0.02, help="For each candidate.")
@click.option("--json", "to", type=click.Path(path_type=Path))
def main(tokens: str, layers: str, tiles: tuple[str, ...], seconds: float, to: Path | None) -> None:
    """Prints a line for each number of tokens."""
    device = measured(torch.device("cuda"))
    print(aoext.__version__, torch.cuda.get_device_name(), flush=True)
    results: dict[str, dict[str, float]] = {}
    for layer in (LAYERS[int(i)] for i in layers.split(",")):
        of_layer = Measured(layer)
        for count in map(int, tokens.split(",")):
            all_of_them, good = of_layer.candidates(count, list(tiles)), {}
            for name, one in all_of_them.items():
                with contextlib.suppress(RuntimeError):  # a plan that does not fit
                    one.prepare()()
                    good[name] = one
            torch.cuda.synchronize()
            times = {name: t.seconds * 1e6 for name, t in interleaved(good, device, seconds).items()}
            x = times.pop("x")
            times = {name: time - x for name, time in times.items()}
            results[f"{layer.name} {count}"] = times
            plan = ao_plan(of_layer, count)
            others = ", ".join(
                f"{name} {time:.1f} (×{times['torch'] / time:.2f})" for name, time in times.items()
            )
            print(f"{layer.name}, {count} tokens: {others}; {plan}", flush=True)
        del of_layer
        torch.cuda.empty_cache()
    if to:
        to.write_text(json.dumps(results, indent=1) + "\n")


def ao_plan(of_layer: Measured, tokens: int) -> str:
    """What the product of int4 chooses."""
    layer = of_layer.layer
    x = torch.empty(tokens * layer.top_k, layer.K, device="cuda", dtype=BF16)
    ends = torch.empty(layer.experts, device="cuda", dtype=torch.int32)
    return str(aoext.explain("bf16i4bf16_rowwise_grouped", x, *of_layer.int4, ends))


if __name__ == "__main__":
    main()
