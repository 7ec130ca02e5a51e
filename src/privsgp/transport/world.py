"""The processes of a run. `World` is one process by itself: it asks nobody. `rendezvous.Processes` are several."""

from __future__ import annotations

import itertools
import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


def blocks(nodes: int, processes: int) -> list[range]:
    """Give each process its nodes: contiguous ranges whose lengths differ by one at most."""
    if processes > nodes:
        raise Refused(f"{processes} processes with data.nodes = {nodes}", f"start at most {nodes} processes")
    ends = [(nodes * rank) // processes for rank in range(processes + 1)]
    return [range(a, b) for a, b in itertools.pairwise(ends)]


def restarts() -> int:
    """Count how often torchrun has started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


class World:
    """One process. With several, all of them make calls that exchange something, in the same order."""

    rank, size = 0, 1

    @property
    def alone(self) -> bool:
        """Whether this process is all there is."""
        return self.size == 1

    def all_gather(self, value: T, kind: object) -> list[T]:
        """Send the others a small public value and return everybody's, in the order of ranks: one's own as it is."""
        return self.all_gather_each(value, [kind] * self.size)

    def all_gather_each(self, value: T, expected: Sequence[object]) -> list[T]:
        """Do `all_gather` where each process sends a value of another kind."""
        del expected
        return [value]

    def all_gather_nodes(self, own: Sequence[T], kind: object, nodes: int) -> list[T]:
        """Send the others a value of each of one's own nodes and return all nodes': one's own as they are."""
        del kind, nodes
        return list(own)

    def all_or_none(self, action: Callable[[], T]) -> T:
        """Do an action that may be refused. If one process refuses, all stop; that process alone says why."""
        return action()

    def number_run(self, own: str) -> str:
        """Return process 0's number of the run."""
        return own

    def leaving(self) -> AbstractContextManager[None]:
        """Let process 0 stay until all are done."""
        return nullcontext()
