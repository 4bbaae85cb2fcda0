"""How often things are measured in a given time: whatever the machine, it is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

Clock = Callable[[], float]


class Budget:
    """Seconds that begin now."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self.begin = clock()

    @property
    def spent(self) -> float:
        return self.clock() - self.begin

    @property
    def left(self) -> float:
        return max(0.0, self.seconds - self.spent)

    def part(self, of_left: float) -> Budget:
        """A budget of this part of what is left, which begins now."""
        return Budget(of_left * self.left, self.clock)

    def rounds(self, most: int) -> Iterator[int]:
        """0, 1, …: the first whatever it takes, another while one as long as the longest so far fits in."""
        longest = 0.0
        for count in range(most):
            if count > 0 and longest >= self.left:
                return
            begin = self.spent
            yield count
            longest = max(longest, self.spent - begin)

    def turns(self, names: Sequence[str], most: int = 1000) -> Iterator[str]:
        """Names in turn, each `most` times and its share of the time at most, but once whatever it takes.

        So what is slow is measured seldom, and does not take the time of what is fast.
        """
        share = self.left / len(names)
        costs: dict[str, list[float]] = {name: [] for name in names}
        for count in range(most):
            left_out = 0
            for name in names:
                cost = costs[name]
                mean = sum(cost) / len(cost) if cost else 0.0
                if count > 0 and (sum(cost) + mean > share or mean >= self.left):
                    left_out += 1
                    continue
                begin = self.spent
                yield name
                cost.append(self.spent - begin)
            if left_out == len(names):
                return
