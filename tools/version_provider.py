"""The version of a wheel: VERSION with the local label of its variant (cpu, cu130 or xpu).

Called by scikit-build-core; the variant comes from the environment variable AOEXT_VARIANT.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIANTS = ("cpu", "cu130", "xpu")


def dynamic_metadata(field: str, settings: Mapping[str, Any] | None = None) -> str:
    if field != "version" or settings:
        raise ValueError(f"this provider gives the version without settings, got {field} {settings}")
    variant = os.environ.get("AOEXT_VARIANT", "cpu")
    if variant not in VARIANTS:
        raise ValueError(f"AOEXT_VARIANT must be one of {', '.join(VARIANTS)}, got {variant!r}")
    version = (Path(__file__).parent.parent / "VERSION").read_text(encoding="utf-8").strip()
    return f"{version}+{variant}"
