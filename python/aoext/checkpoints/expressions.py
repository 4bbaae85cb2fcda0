r"""Regular expressions of somebody's config, in time that is bounded by their length times that of a name.

Python's own matcher tries every way to divide a name among the repetitions of an expression, which takes
for ever with `([\w.]+)+!`. Here an expression is a little program, and each place of it is visited at most
once at each place of the name. What one place takes, characters and anchors without repetitions, Python's
matcher decides, so that these mean what they mean there. There are no references to groups, no looking
behind, no flags.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from typing import NoReturn

# Instructions of a program, in which counted repetitions write their body several times, and of the parts
# that look ahead, which may be gone through at each place of a name.
_LONGEST, _LONGEST_AHEAD = 2000, 200

# What groups may be nested to.
_DEEPEST = 50

_TOKENS = re.compile(
    r"\\x[0-9a-fA-F]{2}|\\[^0-9]|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?[:=!]|[()|]"
    r"|(?:[*+?]|\{\d*,\d*\}|\{\d+\})\??|[^\\\[()]",
    re.DOTALL,
)
_REPETITION = re.compile(r"([*+?])|\{(\d*)(,?)(\d*)\}")


@dataclass(frozen=True)
class _Jump:
    """Where to go on, relative to here: at each of these places."""

    targets: tuple[int, ...]


@dataclass(frozen=True)
class _Look:
    """Goes on where a program fits ahead, or where it does not."""

    program: tuple[_Instruction, ...]
    wanted: bool


# A pattern of Python's takes so many characters, none of them repeated.
_Instruction = re.Pattern[str] | _Jump | _Look
_Program = tuple[_Instruction, ...]


class Expression:
    r"""A regular expression as Python has them; ValueError, which begins with `who`, for what is none.

    >>> Expression("config", r".*\.(q|k)_proj$").match("layers.0.q_proj")
    True
    """

    def __init__(self, who: str, text: str) -> None:
        self._who, self._text = who, text
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            self._refuse(f"is none: {error}")
        self._tokens = list(_TOKENS.finditer(text))
        if "".join(token.group() for token in self._tokens) != text:
            self._refuse("has references to groups, which are not read")
        self._at = self._ahead = 0
        self._program = self._either(0)

    def match(self, name: str) -> bool:
        """Whether the beginning of a name fits, as for re.match."""
        return _fits(self._program, name, [0])

    def search(self, name: str) -> bool:
        """Whether some part of a name fits, as for re.search."""
        return _fits(self._program, name, range(len(name), -1, -1))

    def _refuse(self, why: str) -> NoReturn:
        raise ValueError(f"{self._who}: the regular expression {reprlib.repr(self._text)} {why}")

    def _next(self) -> str:
        return self._tokens[self._at].group() if self._at < len(self._tokens) else ""

    def _either(self, depth: int) -> _Program:
        """One of the alternatives that begin here."""
        if depth > _DEEPEST:
            self._refuse(f"has more than {_DEEPEST} groups in each other")
        program = self._sequence(depth)
        while self._next() == "|":
            self._at += 1
            other = self._sequence(depth)
            first = (_Jump((1, len(program) + 2)), *program, _Jump((len(other) + 1,)))
            program = self._bounded((*first, *other))
        return program

    def _sequence(self, depth: int) -> _Program:
        program: list[_Instruction] = []
        fixed = False  # whether the last instruction may take what follows as well
        while self._next() not in ("", "|", ")"):
            one = self._one(depth)
            repeated = self._repeated(one)
            last = program[-1] if fixed else None
            fixed = repeated is one and len(one) == 1 and isinstance(one[0], re.Pattern)
            if fixed and isinstance(last, re.Pattern) and isinstance(one[0], re.Pattern):
                program[-1] = re.compile(last.pattern + one[0].pattern)
            else:
                program += self._bounded((*program, *repeated))[len(program) :]
        return tuple(program)

    def _one(self, depth: int) -> _Program:
        """A group, a character or an anchor."""
        token = self._next()
        self._at += 1
        if not token.startswith("("):
            try:
                return (re.compile(token),)
            except re.error:
                self._refuse(f"has {token!r}, which is not read here")
        if token == "(" and self._next() == "?":
            self._refuse("has a group of a kind that is not read")
        inside = self._either(depth + 1)
        self._at += 1  # the end of the group
        if token not in ("(?=", "(?!"):
            return inside
        self._ahead += len(inside)
        if self._ahead > _LONGEST_AHEAD or any(isinstance(part, _Look) for part in inside):
            self._refuse("looks ahead too much")
        return (_Look(inside, token == "(?="),)

    def _repeated(self, body: _Program) -> _Program:
        said = _REPETITION.match(self._next())
        if said is None:
            return body
        self._at += 1
        sign, least, comma, most = said.groups()
        if sign:
            least, most = {"*": ("0", ""), "+": ("1", ""), "?": ("0", "1")}[sign]
        elif not comma:
            most = least
        count = int(least or 0)
        if most:
            optional = int(most) - count
        size = (count + (optional if most else 1)) * (len(body) + 2)
        if size > _LONGEST:
            self._refuse("is too long")
        if not most:
            return (*(body * count), _Jump((1, len(body) + 2)), *body, _Jump((-len(body) - 1,)))
        return (*(body * count), *((_Jump((1, len(body) + 1)), *body) * optional))

    def _bounded(self, program: _Program) -> _Program:
        if len(program) > _LONGEST:
            self._refuse("is too long")
        return program


def _fits(program: _Program, name: str, starts: list[int] | range) -> bool:
    """Whether a program comes to its end, from the first instruction at one of these places of a name."""
    waiting = [(0, start) for start in starts]
    seen = set(waiting)
    while waiting:
        place, at = waiting.pop()
        if place == len(program):
            return True
        instruction = program[place]
        following: list[tuple[int, int]] = []
        if isinstance(instruction, _Jump):
            following = [(place + target, at) for target in instruction.targets]
        elif isinstance(instruction, _Look):
            if _fits(instruction.program, name, [at]) == instruction.wanted:
                following = [(place + 1, at)]
        else:
            taken = instruction.match(name, at)
            if taken is not None:
                following = [(place + 1, taken.end())]
        for state in following:
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return False
