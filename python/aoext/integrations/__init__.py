"""Where other libraries let a quantiser in: one file for each of them.

None of them is imported before the program imports it, and none is needed.
"""

from __future__ import annotations

from types import ModuleType

from aoext._imports import when_imported


def install() -> None:
    """Make aoext known to each library as soon as the program imports it."""
    when_imported("transformers.quantizers.auto", _register_with_transformers)


def _register_with_transformers(_: ModuleType) -> None:
    import aoext.integrations.transformers
