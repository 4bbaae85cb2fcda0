"""tools/prose.py: what it finds in a tree, and what it leaves alone."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
prose = importlib.import_module("prose")


def test_sentences_without_a_subject_and_paths_that_lead_nowhere_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    lines = {
        "csrc/generic/a.h": [
            "// Of a weight: its scale.",
            "// One of many, see csrc/generic/a.h.",
            "int KernelOf = 0;",
        ],
        "csrc/generic/b.h": [],
        "page.md": [
            "`generic/a.h`, `csrc/{generic,cpu}/b.h`, `csrc/*/a.h`, `gone.h`, `out/x.json`, csrc/gone.cpp.",
            "It says. Of these, two.",
        ],
    }
    for name, text in lines.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n".join(text))
    assert [fault.split(":", 2)[:2] for fault in prose.faults(list(lines))] == [
        ["csrc/generic/a.h", "1"],
        ["page.md", "1"],  # csrc/gone.cpp
        ["page.md", "1"],  # gone.h
        ["page.md", "2"],
    ]
