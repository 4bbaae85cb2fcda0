"""What the config of somebody's checkpoint says, read by type.

Nothing of it is believed: whatever is not what it must be is a ValueError that names whose config and which
key it is.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

_LARGEST = 2**63 - 1


@contextmanager
def named(who: str) -> Iterator[None]:
    """Makes of errors of whatever kind a ValueError that begins with `who`, but of a lack of memory."""
    try:
        yield
    except (torch.OutOfMemoryError, torch.AcceleratorError, MemoryError):
        raise
    except ValueError as error:
        if str(error).startswith(f"{who}: "):
            raise
        raise ValueError(f"{who}: {error}") from error
    except (TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError, AssertionError) as error:
        raise ValueError(f"{who}: {type(error).__name__}: {error}") from error


class Settings:
    """A JSON object of a config. A key whose value is null is as if it were not there.

    who: what error messages begin with, such as "gptq"
    """

    def __init__(self, who: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"{who}: the settings must be a JSON object, got {reprlib.repr(values)}")
        self.who = who
        self.values = values

    def __bool__(self) -> bool:
        return bool(self.values)

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def refuse(self, key: str, must: str) -> NoReturn:
        """ValueError that says what the value of a key must be, and what it is."""
        raise ValueError(f"{self.who}: {key} must be {must}, got {reprlib.repr(self.values.get(key))}")

    def any(self, key: str) -> Any:
        """The value, whatever it is; None where there is none."""
        return self.values.get(key)

    def choice(self, key: str, choices: Sequence[Any], default: Any = None) -> Any:
        """The one of `choices` that the value is, or the default."""
        value = self.values.get(key)
        value = default if value is None else value
        for one in choices:
            if isinstance(value, bool) == isinstance(one, bool) and value == one:
                return one
        self.refuse(key, f"one of {', '.join(map(repr, choices))} to run on aoext")

    def integer(self, key: str, default: int) -> int:
        """A positive integer."""
        value = self.values.get(key)
        if value is None:
            return default
        if type(value) is not int or not 0 < value <= _LARGEST:
            self.refuse(key, "a positive integer")
        return value

    def group_size(self, key: str, default: int) -> int:
        """A positive integer, or -1 for whole rows."""
        value = self.values.get(key)
        return -1 if type(value) is int and value == -1 else self.integer(key, default)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """A text."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.refuse(key, "a text")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of texts; empty where there is none."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
            self.refuse(key, "a list of texts")
        return list(value)

    def sizes(self, key: str) -> list[int] | None:
        """Two positive integers; None where there are none."""
        value = self.values.get(key)
        if value is None:
            return None
        good = isinstance(value, (list, tuple)) and len(value) == 2
        if not good or not all(type(size) is int and 0 < size <= _LARGEST for size in value):
            self.refuse(key, "two positive integers")
        return list(value)

    def object(self, key: str) -> Settings:
        """The settings in the object that the value is; none where there is no such object."""
        value = self.values.get(key)
        return Settings(f"{self.who}: {key}", {} if value is None else value)

    def objects(self, key: str) -> dict[str, Settings]:
        """The settings in each of the objects of an object, by their keys."""
        inside = self.object(key).values
        if not all(isinstance(name, str) for name in inside):
            self.refuse(key, "a JSON object")
        return {name: Settings(f"{self.who}: {key}: {name}", value) for name, value in inside.items()}
