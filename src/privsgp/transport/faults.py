"""What may go wrong on a simulated network: lost and late messages, nodes that are down for a while or leave for good.

Which message is lost is public randomness, keyed by the step, so that a run with faults can be repeated and resumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

from privsgp.errors import Refused
from privsgp.graph.assumptions import HORIZON, union

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from privsgp.graph import Graph

DOWN = 20  # steps a crashed node needs to come back, where nothing else is said
STALENESS = 64


class Outage(NamedTuple):
    """A node that is down in the steps first … stop − 1."""

    node: int
    first: int
    stop: int


class Leave(NamedTuple):
    """A node that takes no step from `step` on."""

    node: int
    step: int


@dataclass(frozen=True)
class Faults:
    """`drop`: chance that a message is lost. `delay`: it arrives 0 to so many steps late, each equally often.

    `staleness`: a receiver that has had nothing over a link for more than so many steps waits for its next message,
    which then gets through at once.
    """

    drop: float = 0.0
    delay: int = 0
    crashes: tuple[Outage, ...] = ()
    leaves: tuple[Leave, ...] = ()
    staleness: int = STALENESS
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1:
            raise Refused(f"--drop {self.drop}", "give the chance that a message is lost: 0 to less than 1")
        for name, least in (("delay", 0), ("staleness", 1)):
            if getattr(self, name) < least:
                raise Refused(f"--{name} {getattr(self, name)}", f"give a number of steps, at least {least}")

    @classmethod
    def parse(
        cls,
        graph: Graph,
        *,
        drop: float = 0.0,
        delay: int = 0,
        crash: Sequence[str] = (),
        leave: Sequence[str] = (),
        staleness: int = STALENESS,
        seed: int = 0,
    ) -> Faults | None:
        """Read what the command line says: crash 3@200 or 3@200+50 (down for 50 steps), leave 5@300."""
        outages = tuple(_outage(text, graph.nodes) for text in crash)
        leaves = tuple(Leave(*_parts("leave", text, graph.nodes)[:2]) for text in leave)
        faults = cls(drop, delay, outages, leaves, staleness, seed)
        if not (drop or delay or outages or leaves):
            return None
        faults.refuse_cut(graph)
        return faults

    def refuse_cut(self, graph: Graph) -> None:
        """Refuse to let nodes leave without whom the others are no longer strongly connected."""
        gone = {node for node, _ in self.leaves}
        stay = [node for node in range(graph.nodes) if node not in gone]
        heard = union(graph, 0, graph.period or HORIZON)[np.ix_(stay, stay)]
        if not stay or connected_components(heard, directed=True, connection="strong")[0] > 1:
            raise Refused(
                f"--leave of nodes {sorted(gone)} on graph {graph.name!r}",
                "the rest would fall apart: choose a denser graph, or other nodes",
            )

    def refuse_late(self, steps: int) -> None:
        """Refuse what would begin after the last step, steps − 1, and so never."""
        begun = [("crash", node, first) for node, first, _ in self.crashes]
        begun += [("leave", node, step) for node, step in self.leaves]
        for option, node, step in begun:
            if step >= steps:
                raise Refused(
                    f"--{option} {node}@{step} with algorithm.steps = {steps}", f"name a step from 0 to {steps - 1}"
                )

    def down(self, k: int) -> list[int]:
        """Return the nodes that are down at step k."""
        return sorted({node for node, first, stop in self.crashes if first <= k < stop})

    def left(self, k: int) -> list[int]:
        """Return the nodes that have left before step k is taken."""
        return sorted({node for node, step in self.leaves if step <= k})

    def weather(self, k: int, messages: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which messages of step k are lost, and by how many steps the others are late."""
        rng = np.random.Generator(np.random.Philox(key=self.seed % 2**128, counter=[0, 0, 0, k]))
        return rng.random(messages) < self.drop, rng.integers(0, self.delay + 1, messages)


def _outage(text: str, nodes: int) -> Outage:
    node, first, steps = _parts("crash", text, nodes)
    if steps == 0:
        raise Refused(f"--crash {text}", "a node that crashes is down for one step at least: write +1 or more")
    return Outage(node, first, first + (DOWN if steps is None else steps))


def _parts(option: str, text: str, nodes: int) -> tuple[int, int, int | None]:
    found = re.fullmatch(r"(\d+)@(\d+)(?:\+(\d+))?" if option == "crash" else r"(\d+)@(\d+)()", text)
    if found is None or int(found[1]) >= nodes:
        example = "3@200 or 3@200+50" if option == "crash" else "3@200"
        raise Refused(f"--{option} {text}", f"write NODE@STEP, like {example}, with a node from 0 to {nodes - 1}")
    return int(found[1]), int(found[2]), int(found[3]) if found[3] else None
