"""Weights of torchao's tensor types, from its checkpoints or as they are in a model.

Layouts that are aoext's own stay the same memory; the others convert without loss (aoext.layouts).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aoext.checkpoints import torchao_blocks, torchao_intx
from aoext.checkpoints.base import Reader, Writer, exactly, is_nonzero, refuse_what_is_aoexts_own, take
from aoext.checkpoints.settings import Settings
from aoext.formats.dtypes import FLOAT_DTYPES
from aoext.packing import layouts
from aoext.serialization.container import parse_json
from aoext.tensors import Float8Tensor, Int4Tensor, Int8Tensor, QuantizedTensor
from aoext.tensors.rowwise import RowScaledTensor

_PREFIX = "_weight_"
_FIELDS = ("qdata", "scale", "scale_and_zero", "zero_point", "act_pre_scale", "per_tensor_scale")


def convert(
    layer: str, kind: str, fields: Mapping[str, Tensor], attributes: Mapping[str, Any], dtype: torch.dtype
) -> QuantizedTensor:
    """The weight that one of torchao's type `kind` with these fields and attributes stands for.

    ValueError, which names the layer, for types and attributes that aoext has no kernel for.
    """
    if kind not in _CONVERSIONS:
        raise ValueError(f"{layer}: torchao's {kind} does not run on aoext")
    if attributes.get("activation_dtype") not in (None, torch.bfloat16, "bfloat16"):
        raise ValueError(f"{layer}: torchao's {kind} with float8 activations does not run on aoext")
    try:
        return _CONVERSIONS[kind](layer, fields, attributes, dtype)
    except TypeError as error:
        raise ValueError(f"{layer}: {error}") from error


def _int4(
    fields: Mapping[str, Tensor], plain: tuple[Tensor, Tensor, Tensor], dtype: torch.dtype
) -> Int4Tensor:
    qdata, scale, zero_point = plain
    pre_scale = fields.get("act_pre_scale")
    if scale.dtype not in (dtype, torch.float32) or pre_scale is not None:
        scale, zero_point = scale.float(), zero_point.float()
    return Int4Tensor.from_fields(
        {
            "qdata": qdata,
            "scale": scale,
            "zero_point": zero_point,
            "act_pre_scale": None if pre_scale is None else pre_scale.reshape(-1).float(),
            "k_order": None,
        },
        dtype,
        block_size=[1, 2 * qdata.shape[1] // scale.shape[0]],
        activation=None,
    )


def _plain(
    layer: str, fields: Mapping[str, Tensor], attributes: Mapping[str, Any], dtype: torch.dtype
) -> Int4Tensor:
    qdata = take(layer, fields, "qdata", (torch.int8,), (-1, -1))
    scale = take(layer, fields, "scale", FLOAT_DTYPES, (-1, qdata.shape[0]))
    return _int4(fields, (qdata, scale, take(layer, fields, "zero_point", FLOAT_DTYPES, scale.shape)), dtype)


def _plain_int32(
    layer: str, fields: Mapping[str, Tensor], attributes: Mapping[str, Any], dtype: torch.dtype
) -> Int4Tensor:
    qdata = take(layer, fields, "qdata", (torch.int32,), (-1, -1))
    scale = take(layer, fields, "scale", FLOAT_DTYPES, (-1, qdata.shape[0]))
    zero = take(layer, fields, "zero_point", (torch.int8,), scale.shape)
    return _int4(fields, layouts.plain_int32_to_plain(qdata, scale, zero, dtype=torch.float32), dtype)


def _tinygemm(
    layer: str, fields: Mapping[str, Tensor], attributes: Mapping[str, Any], dtype: torch.dtype
) -> Int4Tensor:
    packed = take(layer, fields, "qdata", (torch.int32,), (-1, -1, -1, -1))
    scale_and_zero = take(layer, fields, "scale_and_zero", (torch.bfloat16,), (-1, -1, 2))
    return _int4(fields, layouts.tinygemm_to_plain(packed, scale_and_zero), dtype)


_Conversion = Callable[[str, Mapping[str, Tensor], Mapping[str, Any], torch.dtype], QuantizedTensor]


def _rows(kind: type[RowScaledTensor], dtypes: tuple[torch.dtype, ...]) -> _Conversion:
    def converted(
        layer: str, fields: Mapping[str, Tensor], attributes: Mapping[str, Any], dtype: torch.dtype
    ) -> QuantizedTensor:
        qdata = take(layer, fields, "qdata", dtypes, (-1, -1))
        rows, columns = qdata.shape
        scale = fields.get("scale")
        if scale is None or scale.numel() not in (1, rows):
            raise ValueError(f"{layer}: scale must have an entry for each of the {rows} rows, or one alone")
        for name in ("zero_point", "act_quant_scale", "act_pre_scale"):
            if is_nonzero(fields.get(name)):
                raise ValueError(f"{layer}: a weight of 8 bits with {name} does not run on aoext")
        dynamic = attributes.get("act_quant_kwargs") is not None
        if "ASYMMETRIC" in str(attributes.get("act_quant_kwargs")):
            raise ValueError(f"{layer}: activations quantised with zero points do not run on aoext")
        flat = take(layer, {"scale": scale.reshape(-1, 1)}, "scale", FLOAT_DTYPES, (scale.numel(), 1))
        every = flat.float().expand(rows, 1).contiguous()
        return kind(qdata, every, [1, columns], dtype, dynamic)

    return converted


_float8_by_rows = _rows(Float8Tensor, (torch.float8_e4m3fn, torch.float8_e5m2))


def _float8(
    layer: str, fields: Mapping[str, Tensor], attributes: Mapping[str, Any], dtype: torch.dtype
) -> QuantizedTensor:
    qdata, block = fields.get("qdata"), Settings(layer, attributes).sizes("block_size")
    by_rows = block is None or qdata is None or block in ([1, qdata.shape[-1]], list(qdata.shape))
    return (_float8_by_rows if by_rows else torchao_blocks.float8)(layer, fields, attributes, dtype)


_CONVERSIONS: dict[str, _Conversion] = {
    "Int4Tensor": _plain,
    "Int4PlainInt32Tensor": _plain_int32,
    "Int4TilePackedTo4dTensor": _tinygemm,
    "IntxUnpackedToInt8Tensor": torchao_intx.unpacked_to_int8,
    "Int8Tensor": _rows(Int8Tensor, (torch.int8,)),
    "Float8Tensor": _float8,
    "MXTensor": torchao_blocks.mx,
    "NVFP4Tensor": torchao_blocks.nvfp4,
}


class TorchaoReader(Reader):
    """{layer}._weight_qdata and the like; the file's metadata says of each weight what it is."""

    names = tuple(_PREFIX + name for name in _FIELDS)

    def __init__(self, settings: Settings) -> None:
        self.described: dict[str, Settings] = {}

    def read_metadata(self, metadata: Mapping[str, str]) -> None:
        for name, text in metadata.items():
            if not name.endswith(".weight"):
                continue
            try:
                said = parse_json(text)
            except ValueError as error:
                raise ValueError(f"torchao: {name}: the file's metadata is no JSON: {error}") from error
            self.described[name.removesuffix(".weight")] = Settings(f"torchao: {name}", said)

    def _weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        described = self.described.get(layer)
        if described is None or "_type" not in described:
            raise ValueError(f"{layer}: the file's metadata does not say what its weight is")
        fields = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
        attributes = described.object("_data").values
        activation = attributes.get("activation_dtype")
        if isinstance(activation, Mapping):
            attributes = {**attributes, "activation_dtype": activation.get("_data")}
        return convert(layer, described.text("_type", ""), fields, attributes, dtype)


class TorchaoWriter(Writer):
    """The tensors of torchao's types and their description, which the package writes itself."""

    def __init__(self, *, symmetric: bool) -> None:
        super().__init__(symmetric=symmetric)
        try:
            from torchao.core.config import config_to_dict
            from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

            from aoext.checkpoints.torchao_tensors import config_like, weight_to_torchao
        except ImportError as error:
            raise ImportError("convert: torchao's format needs torchao: pip install torchao") from error
        self._flatten, self._to_torchao = flatten_tensor_state_dict, weight_to_torchao
        self._config_like: Callable[[QuantizedTensor], Any] = config_like
        self._config_to_dict = config_to_dict

    def write(self, layer: str, weight: QuantizedTensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        name = f"{layer}.weight"
        refuse_what_is_aoexts_own(layer, weight)
        widened = isinstance(weight, Int4Tensor) and weight.scale.dtype != weight.dtype
        if widened and getattr(weight, "k_order", None) is None:
            parts = dict(weight.named_fields())
            for part in ("scale", "zero_point"):  # which have the weight's dtype there
                parts[part] = exactly(layer, parts[part], weight.dtype)
            weight = weight.remade(parts)
        tensors, metadata = self._flatten({name: self._to_torchao(layer, weight)})
        facts = {
            "described": metadata[name],
            "config": json.dumps(self._config_to_dict(self._config_like(weight)), sort_keys=True),
        }
        return {key.removeprefix(f"{layer}."): tensor for key, tensor in tensors.items()}, facts

    def metadata(self, layers: Mapping[str, Mapping[str, Any]], others: Sequence[str]) -> dict[str, str]:
        described = {f"{layer}.weight": facts["described"] for layer, facts in layers.items()}
        described.update(dict.fromkeys(others, json.dumps({"_type": "Tensor"})))
        return {**described, "tensor_names": json.dumps(list(described))}

    def settings(self, layers: Mapping[str, Mapping[str, Any]], left_alone: Sequence[str]) -> dict[str, Any]:
        # What the weights are stands in the files; transformers wants one config for those to come.
        ((most, _),) = Counter(facts["config"] for facts in layers.values()).most_common(1)
        return {
            "quant_method": "torchao",
            "quant_type": {"default": json.loads(most)},
            "modules_to_not_convert": list(left_alone),
        }
