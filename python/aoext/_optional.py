"""Packages that aoext can do without, imported when they are asked for."""

from __future__ import annotations

from types import ModuleType


def import_safetensors() -> ModuleType:
    """The safetensors package with its torch part; ImportError, which says how to get it."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "aoext: the weights of tiny_lm need safetensors: pip install 'aoext[safetensors]'"
        ) from error
    return safetensors
