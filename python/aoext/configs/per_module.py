"""One scheme for each module of a model, and its form in JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aoext.configs.base import QuantizationConfig
from aoext.configs.schemes import Scheme, as_config, to_dict


@dataclass(frozen=True)
class PerModuleConfig:
    """Schemes of modules by their names.

    scheme: of the modules that per_module does not name; None leaves them as they are
    per_module: schemes by names of modules, or by regular expressions that are searched in names; a name
        counts first, then the first expression that is found; None leaves a module as it is

    >>> PerModuleConfig("int4", {"lm_head": "int8"}).config_for("lm_head")
    Int8WeightOnlyConfig()
    """

    scheme: QuantizationConfig | Any = None
    per_module: Mapping[str, QuantizationConfig | Any | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        who = type(self).__name__
        object.__setattr__(self, "scheme", None if self.scheme is None else as_config(who, self.scheme))
        object.__setattr__(self, "per_module", checked_schemes(who, self.per_module))

    def config_for(self, module: str) -> QuantizationConfig | None:
        """The config of the module of this name; None if it stays as it is."""
        return scheme_of(module, self.scheme, self.per_module)

    def with_algorithm(self, algorithm: str | None) -> PerModuleConfig:
        """All schemes with another algorithm, where one is given. ValueError for one that one cannot have."""
        each = {name: config and config.with_algorithm(algorithm) for name, config in self.per_module.items()}
        return PerModuleConfig(self.scheme and self.scheme.with_algorithm(algorithm), each)

    def to_dict(self) -> dict[str, Any]:
        """All of it in JSON's types."""
        return in_json(self.scheme, self.per_module)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> PerModuleConfig:
        """The inverse of to_dict. ValueError for what is no such thing."""
        if not isinstance(content, Mapping) or content.keys() - {"scheme", "per_module"}:
            got = ", ".join(map(str, content)) if isinstance(content, Mapping) else repr(content)
            raise ValueError(f"{cls.__name__}: it must be an object with scheme and per_module, got {got}")
        return cls(content.get("scheme"), content.get("per_module") or {})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as a file in JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PerModuleConfig:
        """What `save` has written. ValueError, which names the file, for what is wrong in it."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error


AnyConfig = QuantizationConfig | PerModuleConfig
Schemes = Mapping[str, QuantizationConfig | None]


def scheme_of(module: str, default: QuantizationConfig | None, schemes: Schemes) -> QuantizationConfig | None:
    """That of a module of this name: by its name, else by the first expression that is found in it."""
    if module in schemes:
        return schemes[module]
    return next((config for pattern, config in schemes.items() if re.search(pattern, module)), default)


def in_json(default: QuantizationConfig | None, schemes: Schemes) -> dict[str, Any]:
    """A default scheme and those of modules, in JSON's types."""
    each = {pattern: None if config is None else to_dict(config) for pattern, config in schemes.items()}
    return {"scheme": None if default is None else to_dict(default), "per_module": each}


def checked_schemes(
    who: str, per_module: Mapping[str, Scheme | None] | None
) -> dict[str, QuantizationConfig | None]:
    """Schemes by regular expressions, as configs. ValueError for what is no expression."""
    found = {}
    for pattern, scheme in (per_module or {}).items():
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(
                f"{who}: per_module must have regular expressions as keys, got {pattern!r}: {error}"
            ) from error
        found[pattern] = None if scheme is None else as_config(f"{who}: {pattern}", scheme)
    return found
