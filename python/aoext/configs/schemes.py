"""Names for the ways to quantise a weight, and their form in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from aoext.configs import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8DynamicActivationInt4WeightConfig,
    Float8WeightOnlyConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt4WeightConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MXDynamicActivationMXWeightConfig,
    MXFP4WeightOnlyConfig,
    NF4WeightOnlyConfig,
    NVFP4WeightOnlyConfig,
    PerBlock,
    PerRow,
    QuantizationConfig,
)
from aoext.configs.base import PER_ROW
from aoext.configs.groups import AUTO
from aoext.formats.dtypes import FLOAT8_DTYPES, dtype_name

SCHEMES: dict[str, type[QuantizationConfig]] = {
    "int4": Int4WeightOnlyConfig,
    "int8": Int8WeightOnlyConfig,
    "int8_dynamic": Int8DynamicActivationInt8WeightConfig,
    "float8": Float8WeightOnlyConfig,
    "float8_dynamic": Float8DynamicActivationFloat8WeightConfig,
    "float8_block": Float8DynamicActivationFloat8WeightConfig,
    "int4_int8": Int8DynamicActivationInt4WeightConfig,
    "int4_float8": Float8DynamicActivationInt4WeightConfig,
    "mxfp8": MXDynamicActivationMXWeightConfig,
    "mxfp4": MXFP4WeightOnlyConfig,
    "nvfp4": NVFP4WeightOnlyConfig,
    "nf4": NF4WeightOnlyConfig,
    "intx": IntxWeightOnlyConfig,
    "int2": IntxWeightOnlyConfig,
    "int3": IntxWeightOnlyConfig,
    "int5": IntxWeightOnlyConfig,
    "int6": IntxWeightOnlyConfig,
}
# What a name means beside its config's defaults: groups that fit each layer, bits, and DeepSeek's blocks.
ARGUMENTS: dict[str, dict[str, Any]] = {
    **{
        name: {"group_size": AUTO}
        for name, config_type in SCHEMES.items()
        if "group_size" in {field.name for field in fields(config_type)}
    },
    "float8_block": {"granularity": [[1, 128], [128, 128]]},
}
for _bits in (2, 3, 5, 6):
    ARGUMENTS[f"int{_bits}"]["bits"] = _bits
_NAMES = {config_type: name for name, config_type in reversed(SCHEMES.items())}
_DTYPES = {dtype_name(dtype): dtype for dtype in FLOAT8_DTYPES}

# What stands for a config: itself, its name, or the dictionary that `to_dict` makes of it.
Scheme = QuantizationConfig | str | Mapping[str, Any]


def as_config(who: str, scheme: Any) -> QuantizationConfig:
    """The config that `scheme` stands for: a config, a name of SCHEMES, or what `to_dict` gives.

    A name means group_size="auto" where its config has groups.
    `who` begins error messages. TypeError for other types, ValueError for unknown names and wrong values.

    >>> as_config("example", {"scheme": "int4", "group_size": 32})
    Int4WeightOnlyConfig(group_size=32, symmetric=False)
    """
    if isinstance(scheme, QuantizationConfig):
        return scheme
    if isinstance(scheme, str):
        scheme = {"scheme": scheme}
    if not isinstance(scheme, Mapping):
        raise TypeError(
            f"{who}: scheme must be a config of aoext or one of {', '.join(SCHEMES)}, got {scheme!r}"
        )
    arguments = dict(scheme)
    name = arguments.pop("scheme", None)
    if name not in SCHEMES:
        raise ValueError(f"{who}: scheme must be one of {', '.join(SCHEMES)}, got {name!r}")
    config_type, arguments = SCHEMES[name], {**ARGUMENTS.get(name, {}), **arguments}
    known = {field.name for field in fields(config_type)}
    if unknown := sorted(arguments.keys() - known):
        raise ValueError(
            f"{who}: {name} takes {', '.join(sorted(known)) or 'no arguments'}, got {', '.join(unknown)}"
        )
    return config_type(**{key: _DTYPES.get(str(value), value) for key, value in arguments.items()})


def to_dict(config: QuantizationConfig) -> dict[str, Any]:
    """The config's name in SCHEMES and its arguments, in JSON's types.

    >>> to_dict(Int4WeightOnlyConfig(group_size=32))
    {'scheme': 'int4', 'group_size': 32, 'symmetric': False}
    """
    arguments = {name: _in_json(value) for name, value in config.arguments().items()}
    return {"scheme": _NAMES[type(config)], **arguments}


def _in_json(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, PerRow):
        return PER_ROW
    if isinstance(value, PerBlock):
        return list(value.block_size)
    return [_in_json(each) for each in value] if isinstance(value, tuple) else value
