"""What follows the import of another package."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from aoext.other_packages import when_imported

NAME = "aoext_test_of_imports"


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield NAME
    sys.modules.pop(NAME, None)


def test_an_action_follows_the_import_and_not_a_question_whether_the_module_is_there(module):
    seen = []
    before = list(sys.meta_path)
    when_imported(module, lambda found: seen.append(found.value))
    assert importlib.util.find_spec(module) is not None
    assert importlib.util.find_spec(module) is not None
    assert seen == []
    importlib.import_module(module)
    assert seen == [1]
    assert sys.meta_path == before
    when_imported(module, lambda found: seen.append(found.value + 1))
    assert seen == [1, 2]
