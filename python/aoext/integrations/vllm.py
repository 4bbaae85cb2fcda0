"""vLLM: checkpoints of aoext in its linear layers, by the entry point `vllm.general_plugins`.

vLLM calls `register` as it starts. Which layers are quantised, and how, stands in the metadata of the
checkpoint's files; that is read as soon as vLLM knows where these are. Layers that vLLM merges (q, k and v;
gate and up) must be quantised alike; where each has one scale for all of its weight (nvfp4), that goes into
the scales of its blocks, which are float32 then.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.utils import set_weight_attrs

from aoext import serialization
from aoext.tensors.fields import K, N
from aoext.tensors.products import linear

METHOD = "aoext"

# Fields that belong to columns as a whole, which merged layers and shards would have to share.
_OF_ALL_COLUMNS = ("act_pre_scale", "k_order")

# The one that each of several merged layers has for itself.
_GLOBAL_SCALE = "global_scale"

# What a description says of its fields' dtypes here, beside what the file has.
_DTYPES = "dtypes"


def register() -> None:
    """The plug-in: importing this module has made aoext known to vLLM."""


@register_quantization_config(METHOD)
class AoextVllmConfig(QuantizationConfig):
    """What vLLM asks about a checkpoint whose config.json says "quant_method": "aoext"."""

    def __init__(self) -> None:
        super().__init__()
        self.descriptions: dict[str, Any] = {}  # of quantised weights, by their names

    @classmethod
    def get_name(cls) -> Any:
        return METHOD

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AoextVllmConfig:
        return cls()

    def maybe_update_config(
        self, model_name: str, *args: Any, revision: str | None = None, **kwargs: Any
    ) -> None:
        """Reads the metadata of the checkpoint's files."""
        folder = Path(model_name)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            patterns = ["*.safetensors", "*.safetensors.index.json"]
            folder = Path(snapshot_download(model_name, revision=revision, allow_patterns=patterns))
        forms: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            self.descriptions.update(serialization.descriptions_in(file))
            forms.update(serialization.forms_in(file))
        for name, description in self.descriptions.items():
            fields = description["fields"]
            description[_DTYPES] = {part: forms[f"{name}.{part}"].dtype for part in fields}
        if not self.descriptions:
            raise ValueError(f"aoext: {model_name} has no weights that aoext has quantised")

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        self.descriptions = hf_to_vllm_mapper.apply_dict(self.descriptions)

    def get_quant_method(self, layer: nn.Module, prefix: str) -> LinearMethodBase | None:
        """ValueError, which names the layer, for what cannot be served."""
        described = self._described(prefix)
        if not isinstance(layer, LinearBase):
            if any(described.values()):
                raise ValueError(f"aoext: {prefix}: vLLM serves quantised weights of linear layers alone")
            return None
        if not any(described.values()):
            return UnquantizedLinearMethod()
        alike = {name: _kind(prefix, description) for name, description in described.items()}
        first = next(iter(alike.values()))
        if any(kind != first for kind in alike.values()):
            raise ValueError(
                f"aoext: {prefix}: vLLM merges {', '.join(described)}, which must be quantised alike"
            )
        return AoextLinearMethod(next(iter(described.values())))

    def _described(self, prefix: str) -> dict[str, Any]:
        """What the checkpoint says of the layers that vLLM merges to the one of this name; None for plain."""
        path, _, leaf = prefix.rpartition(".")
        parts = self.packed_modules_mapping.get(leaf, [leaf])
        names = [f"{path}.{part}" if path else part for part in parts]
        return {name: self.descriptions.get(f"{name}.weight") for name in names}


def _kind(prefix: str, description: Mapping[str, Any] | None) -> Any:
    """What must be equal in layers that are merged."""
    if description is None:
        return None
    for field in _OF_ALL_COLUMNS:
        if field in description["fields"]:
            raise ValueError(f"aoext: {prefix}: a weight with {field} does not run in vLLM yet")
    return {key: value for key, value in description.items() if key != "shape"}


def _load_shared(parameter: nn.Parameter, loaded: Tensor, *shard: Any) -> None:
    """Takes what all parts and ranks have alike, as a table; ValueError where they differ."""
    if getattr(parameter, "is_loaded", False) and not torch.equal(parameter.data, loaded):
        raise ValueError("aoext: vLLM merges layers whose weights have different tables")
    parameter.data.copy_(loaded)
    cast(Any, parameter).is_loaded = True


class AoextLinearMethod(LinearMethodBase):
    """A linear layer whose weight has the fields of one of aoext's tensors.

    While the checkpoint loads, these are parameters `weight.qdata` and the like, which vLLM cuts and merges
    along N and K; then they become one quantised weight.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.description = description
        self.kind = serialization.TENSOR_TYPES[description["type"]]

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        rows, columns = sum(output_partition_sizes), input_size_per_partition
        self.block_size = [1, columns] if self.kind.blocks_are_rows else list(self.description["block_size"])
        self.rows_of_parts = output_partition_sizes
        whole = {N: output_size == output_partition_sizes[0], K: input_size == columns}
        for dim, sizes in ((N, output_partition_sizes), (K, [columns])):
            step = self.block_size[dim]
            if any(size % step for size in sizes) and not (self.kind.any_blocks and whole[dim]):
                raise ValueError(
                    f"aoext: block_size = {self.block_size} does not divide the {', '.join(map(str, sizes))} "
                    f"{('rows', 'columns')[dim]} of a rank, each part by itself"
                )
        parts = nn.Module()
        for name in self.description["fields"]:
            field = self.kind.fields[name]
            # What follows the activations' dtype comes in float32, which holds all of them.
            dtype = torch.float32 if field.follows_dtype else self.description[_DTYPES][name]
            shape = field.shape([rows, columns], self.block_size)
            if name == _GLOBAL_SCALE:
                shape = [len(output_partition_sizes)]
            parameter = nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)
            loader = {"weight_loader": _load_shared} if self._is_shared(name) else {}
            set_weight_attrs(parameter, {**self._sides(name), **extra_weight_attrs, **loader})
            parts.register_parameter(name, parameter)
        layer.weight = parts
        self.dtype = params_dtype

    def _is_shared(self, name: str) -> bool:
        """Whether a field is the same for all rows and columns, as a table is."""
        return name != _GLOBAL_SCALE and all(axis.dim not in (N, K) for axis in self.kind.fields[name].axes)

    def _sides(self, name: str) -> dict[str, Any]:
        """Where ranks and merged layers have their shares of a field, as vLLM's loaders want to know it."""
        if name == _GLOBAL_SCALE:
            return {"needs_scalar_to_array": True}
        axes = self.kind.fields[name].axes
        sides = {
            ("output_dim", "input_dim")[axis.dim]: at for at, axis in enumerate(axes) if axis.dim in (N, K)
        }
        if self.kind.blocks_are_rows and self.kind.fields[name].per_block:
            del sides["input_dim"]  # all ranks have the scale of a whole row
        step = next((axis.elements(self.block_size) for axis in axes if axis.dim == N), 1)
        if step > 1:  # rows that share an entry
            sides |= {"packed_dim": sides["output_dim"], "packed_factor": step}
        return sides

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Makes one weight of its fields; scales go back to the activations' dtype where that is exact."""
        parts = cast(nn.Module, layer.weight)
        fields = {name: part.data for name, part in parts.named_parameters()}
        follow = [name for name in fields if self.kind.fields[name].follows_dtype]
        narrow = {name: fields[name].to(self.dtype) for name in follow}
        if all(torch.equal(tensor.float(), fields[name]) for name, tensor in narrow.items()):
            fields.update(narrow)
        if _GLOBAL_SCALE in fields:
            self._share_global_scale(fields)
        attributes = serialization.described_attributes(self.kind, self.description)
        every = {**dict.fromkeys(self.kind.fields), **fields}
        weight = self.kind.from_fields(every, self.dtype, **{**attributes, "block_size": self.block_size})
        del layer.weight
        layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))

    def _share_global_scale(self, fields: dict[str, Tensor]) -> None:
        """Gives the scales of blocks what each part has for itself, unless all parts have the same."""
        whole = fields.pop(_GLOBAL_SCALE)
        whole = torch.where(whole == 0, whole[0], whole)  # parts that come as one have one
        if bool((whole == whole[0]).all()):
            fields[_GLOBAL_SCALE] = whole[:1].clone()
            return
        of_rows = whole.repeat_interleave(torch.tensor(self.rows_of_parts, device=whole.device))
        scale = fields["scale"]
        scale = (scale.view(torch.float8_e8m0fnu) if scale.dtype is torch.uint8 else scale).float()
        fields["scale"] = scale * of_rows[:: self.block_size[N], None]

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x, layer.weight, bias)
