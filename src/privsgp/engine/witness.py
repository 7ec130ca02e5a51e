"""What is known of a run's ledgers outside them, so that one that was lost, put back or copied is not begun anew.

Three know: every checkpoint (`Progress.ledgers`); `private/place.json` of a run without a seed, from before its first
release on, with where the run folder was; and, outside all run folders, the state folder (accounting/state.py). What
they say is used to refuse and to warn, never to grant: whoever changes it can stop a run, not lengthen it (privacy.md,
"Peers are adversaries").
"""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from privsgp.accounting import ledger
from privsgp.accounting.state import BY, add, outside, read, save, state, unusable
from privsgp.engine.checkpoint import read_progress
from privsgp.engine.folder import Folder
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from privsgp.accounting.ledger import Ledger, Seen

__all__ = ["Spending", "Witness", "elsewhere", "heads", "outside", "refuse_copy", "settle", "unusable"]


class Spending(NamedTuple):
    """What one node of another run has spent, by a ledger or by what is remembered of one."""

    origin: str  # the ledger's first run: it names the ledger, whoever goes on with it
    folder: Path
    node: int
    charged: int
    epsilon: float | None


class Witness:
    """What a run's own folder and this user's state folder know of its ledgers."""

    def __init__(self, folder: Folder, *, simulation: bool) -> None:
        self.folder, self.simulation = folder, simulation
        self._outside: dict[str, dict[int, list[Seen]]] = {}

    def of_folder(self) -> dict[int, list[Seen]]:
        """Return what checkpoints and, without a seed, the note of where the run began know of each node's ledger."""
        known: dict[int, list[Seen]] = {}
        for path in (self.folder.checkpoint_before, self.folder.checkpoint):
            if path.exists():
                add(known, read_progress(path).ledgers, path, "the checkpoint")
        if not self.simulation:
            add(known, read(self.folder.place).get("ledgers", {}), self.folder.place, "the run folder")
        return known

    def outside(self, origin: str, node: int) -> list[Seen]:
        """Return what the state folder knows of the ledger of a node that a run began; of a simulation's nothing."""
        if self.simulation or not origin:
            return []
        if origin not in self._outside:
            self._outside[origin] = outside(origin)
        return self._outside[origin].get(node, [])

    def begin(self, ledgers: Sequence[Ledger]) -> None:
        """Note where this folder is and what its ledgers hold, before anything more is spent from them."""
        if not self.simulation:
            _note_place(self.folder, ledgers)
        self.remember(ledgers)

    def remember(self, ledgers: Sequence[Ledger]) -> None:
        """Note in the state folder how far the ledgers are; without one to write to, nothing is noted."""
        where = state()
        if self.simulation or not ledgers or where is None:
            return
        header, origin = ledgers[0].segment.header, ledgers[0].origin
        values = {
            "origin": origin,
            "layout": header.layout,
            "folder": str(ledgers[0].path.resolve().parent.parent),
            "epsilon": None if header.budget is None else header.budget["epsilon"],
            "nodes": heads(ledgers),
        }
        if origin:
            with suppress(OSError):
                where.mkdir(mode=0o700, parents=True, exist_ok=True)
                save(where / f"{origin}{self.folder.part}.json", "state", values)


def heads(ledgers: Sequence[Ledger]) -> dict[str, tuple[int, str]]:
    """Return by node what is charged in a ledger, and its head."""
    seen = ((one.segment.header.node, one.seen("")) for one in ledgers)
    return {str(node): (charged, head) for node, (charged, head, _) in seen}


def elsewhere(out: Path, layout: str) -> list[Spending]:
    """Return what other private runs spent on records laid out like this: those beside `out` and those remembered."""
    found = {one.origin: one for one in (*_remembered(layout), *_beside(out, layout))}
    return sorted(found.values(), key=lambda one: one.folder)


def _remembered(layout: str) -> Iterator[Spending]:
    where = state()
    for path in sorted(where.glob("*.json")) if where is not None else ():
        known: dict[int, list[Seen]] = {}
        with suppress(Refused):  # damaged: whoever goes on with its ledgers is told
            values = read(path)
            add(known, values.get("nodes"), path, BY)
            if values.get("layout") == layout:
                node, place, epsilon = min(known), Path(str(values.get("folder"))), values.get("epsilon")
                spent = epsilon if isinstance(epsilon, float) else None
                yield Spending(str(values.get("origin")), place, node, known[node][0].charged, spent)


def _beside(out: Path, layout: str) -> Iterator[Spending]:
    for path in sorted(out.absolute().parent.glob("*/ledger")):
        for file in sorted(path.glob("node-*.jsonl"))[:1]:
            with suppress(Refused):  # damaged: whoever goes on with it is told
                header = ledger.first(file)
                if header is not None and header.layout == layout and not header.simulation:
                    charged = sum(segment.charged for segment in ledger.read(file))
                    epsilon = None if header.budget is None else header.budget["epsilon"]
                    yield Spending(header.run, path.resolve().parent, header.node, charged, epsilon)


def settle(folder: Folder) -> None:
    """Note where a run begins, before its folder can be resumed: one without that note has lost it."""
    if not folder.place.exists():
        _note_place(folder, ())


def _note_place(folder: Folder, ledgers: Sequence[Ledger]) -> None:
    save(folder.place, "place", _whereabouts(folder.path) | {"ledgers": heads(ledgers)})


def refuse_copy(folder: Folder, *, moved: bool) -> None:
    """Refuse a run folder that is not the one its run began in: of two copies, each would count its own spending alone.

    A folder that was renamed is the same one. One that was moved to another disk or machine looks like a copy. One that
    does not know where it began is no run: what it had spent could be begun anew.
    """
    began, here = read(folder.place), _whereabouts(folder.path)
    if not began:
        raise Refused(
            f"--resume with --out {folder.path}, which has lost {folder.place.relative_to(folder.path)}: nothing there "
            "says what was spent",
            "restore the folder as it was when the run stopped; to begin a run, choose another --out",
        )
    if began.get("inode") == here["inode"]:
        return
    if all(began.get(key) == here[key] for key in ("path", "machine")):
        return  # put back, perhaps: the state folder knows what was spent meanwhile
    old = Path(str(began.get("path")))
    if old.exists() and Folder(old).run == folder.run:
        raise Refused(f"{folder.path} is a copy of {old}", "resume that one: a copy would spend the same budget again")
    if not moved:
        raise Refused(
            f"the run in {folder.path} began in {old} on {'this' if began.get('machine') == _machine() else 'another'} "
            "machine: this looks like a copy",
            "if it was moved, and no copy of it goes on elsewhere, add --moved; else resume the original",
        )


def _whereabouts(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"path": str(path.resolve()), "machine": _machine(), "inode": [status.st_dev, status.st_ino]}


def _machine() -> str:
    with suppress(OSError):
        return Path("/etc/machine-id").read_text().strip() or platform.node()
    return platform.node()
