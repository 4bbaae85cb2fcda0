"""What the benchmarks compare: schemes of linear layers, aoext's and torchao's, and modes to call them in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import aoext
from aoext.configs.schemes import as_config


@dataclass(frozen=True)
class Scheme:
    """One way to store and multiply the weights of the linear layers."""

    name: str
    quantise: Callable[[nn.Module], Any] | None = None  # None: as they are
    peer: str | None = None  # torchao's scheme that does the same
    dtype: torch.dtype | None = None  # of the model before; None: as asked for
    devices: tuple[str, ...] = ("cpu", "cuda")

    def what_prevents(self, device: torch.device) -> str | None:
        """Why it cannot be measured there."""
        return None if device.type in self.devices else f"it runs on {' and '.join(self.devices)} alone"


def _ours(config: aoext.configs.QuantizationConfig) -> Callable[[nn.Module], Any]:
    return lambda model: aoext.quantize_(model, config)


def _torchao(name: str, **arguments: Any) -> Callable[[nn.Module], Any]:
    """torchao's config of this name for the layers that aoext quantises: no head that shares its weight."""

    def quantise(model: nn.Module) -> None:
        from torchao import quantization

        made = {key: value() if callable(value) else value for key, value in arguments.items()}
        shared = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        quantization.quantize_(
            model,
            getattr(quantization, name)(**made),
            lambda module, _: isinstance(module, nn.Linear) and id(module.weight) not in shared,
        )

    return quantise


def _per_row() -> Any:
    from torchao.quantization import PerRow

    return PerRow()


def _tinygemm(group_size: int) -> Callable[[nn.Module], Any]:
    return _torchao("Int4WeightOnlyConfig", group_size=group_size, int4_packing_format="tile_packed_to_4d")


_CUDA = ("cuda",)
SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("bf16", dtype=torch.bfloat16),
        Scheme("float32", dtype=torch.float32),
        Scheme("int4", _ours(aoext.Int4WeightOnlyConfig(group_size=128)), "ao_int4"),
        Scheme("ao_int4", _tinygemm(128), devices=_CUDA),
        Scheme("int4g32", _ours(aoext.Int4WeightOnlyConfig(group_size=32)), "ao_int4g32"),
        Scheme("ao_int4g32", _tinygemm(32), devices=_CUDA),
        Scheme("int4_int8", _ours(aoext.Int8DynamicActivationInt4WeightConfig(group_size=128))),
        Scheme("int4g32_int8", _ours(aoext.Int8DynamicActivationInt4WeightConfig(group_size=32))),
        Scheme("mxfp4", _ours(aoext.MXFP4WeightOnlyConfig())),
        Scheme("nvfp4", _ours(aoext.NVFP4WeightOnlyConfig())),
        Scheme("nf4", _ours(aoext.NF4WeightOnlyConfig())),
        Scheme("fp8block", _ours(as_config("benchmarks", "float8_block"))),
        Scheme("int8wo", _ours(aoext.Int8WeightOnlyConfig()), "ao_int8wo"),
        Scheme("ao_int8wo", _torchao("Int8WeightOnlyConfig")),
        Scheme("int8dyn", _ours(aoext.Int8DynamicActivationInt8WeightConfig()), "ao_int8dyn"),
        Scheme("ao_int8dyn", _torchao("Int8DynamicActivationInt8WeightConfig")),
        Scheme("fp8wo", _ours(aoext.Float8WeightOnlyConfig()), "ao_fp8wo"),
        Scheme("ao_fp8wo", _torchao("Float8WeightOnlyConfig")),
        Scheme("fp8dyn", _ours(aoext.Float8DynamicActivationFloat8WeightConfig()), "ao_fp8dyn"),
        Scheme(
            "ao_fp8dyn",
            _torchao("Float8DynamicActivationFloat8WeightConfig", granularity=_per_row),
            devices=_CUDA,
        ),
    )
}
BASES = ("bf16", "float32")  # that are not quantised

# "grad": gradients are enabled, and nothing wants one.
MODES = {"inference_mode": torch.inference_mode, "no_grad": torch.no_grad, "grad": torch.enable_grad}
