"""Whole numbers by step that stay the same over long stretches of steps: what a ledger knows of each step."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = 10_000  # no run is interrupted so often; a forged ledger may say so


class Stretches:
    """A number for every step, 0 but for what was put. Memory grows with the stretches, not with the steps."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._values: list[int] = []

    def __getitem__(self, step: int) -> int:
        place = bisect_right(self._starts, step)
        return self._values[place - 1] if place else 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stretches) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # it changes

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (first, stop, value) of each stretch whose value is not 0."""
        stops = self._starts[1:]
        return (part for part in zip(self._starts, stops, self._values, strict=False) if part[2])

    def between(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first, stop, value) of each stretch of the steps first … stop − 1, zeros too."""
        place = bisect_right(self._starts, first)
        while first < stop:
            end = min(stop, self._starts[place]) if place < len(self._starts) else stop
            yield first, end, self._values[place - 1] if place else 0
            first, place = end, place + 1

    def put(self, first: int, stop: int, value: int) -> None:
        """Set the steps first … stop − 1; ValueError where that makes more stretches than any run has."""
        if value and self._starts and self._starts[-1] == first and self._values[-2] == value:
            self._starts[-1] = stop  # the last stretch grows: nearly always
            return
        after = self[stop]
        low, high = bisect_left(self._starts, first), bisect_right(self._starts, stop)
        before = self._values[low - 1] if low else 0
        new = [(first, value)] if value != before else []
        new += [(stop, after)] if after != value else []
        self._starts[low:high] = [start for start, _ in new]
        self._values[low:high] = [kept for _, kept in new]
        if len(self._starts) > MOST:
            raise ValueError(f"more than {MOST} stretches of steps: no run is interrupted so often")
