"""Enter a run in the budget book before its first release, and name what its records have spent elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import math
from typing import TYPE_CHECKING

import numpy as np

from privsgp.accounting.book import Book, Entry, Records, Total
from privsgp.accounting.policy import Policy, refuse_spending
from privsgp.accounting.shown import up
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from privsgp.data.dataset import Dataset
    from privsgp.data.hashes import Hashes
    from privsgp.engine.folder import Folder
    from privsgp.engine.spec import RunSpec
    from privsgp.runs.config import Config

_LOG = logging.getLogger(__name__)
_MOST_NAMED = 5
_PERSON = ", one person"
HELD_OUT, TRAINED = "held out", "trained on"


def records_of(hashes: Hashes, dataset: Dataset, parts: Sequence[NDArray[np.int64]]) -> list[Records]:
    """Return each node's records: a digest of all in order with their targets, and hashes of each.

    A sample's own hash comes first, then those of its row of a table, which no schema changes. If a sample is a
    person, the last is of the person, so all rows of a person count as one in any file.
    """
    known = hashes[:, None] if dataset.rows is None else np.column_stack([hashes, dataset.rows])
    whose = np.empty((len(hashes), 0), np.uint64)
    if dataset.persons is not None:
        whose = dataset.persons.hashes
        known = np.column_stack([known[:, 0], known[:, 1 % known.shape[1]], whose[:, 0]])
    found = []
    for rows in parts:
        fields = (hashes[rows], dataset.y[rows], whose[rows])
        digest = hashlib.sha256(b"".join(part.tobytes() for part in fields)).hexdigest()
        found.append(Records(digest, known[rows]))
    return found


def pooled(records: Sequence[Records]) -> list[Records]:
    """Return the records of all nodes as those of one."""
    if not records:
        return []
    digest = hashlib.sha256("".join(one.digest for one in records).encode()).hexdigest()
    return [Records(digest, np.concatenate([one.hashes for one in records]))]


def relation(config: Config) -> str:
    """Return the relation and the unit that the book has of a run with this configuration."""
    return config.privacy.relation + ("" if config.data.person is None else _PERSON)


def entries(spec: RunSpec, folder: Folder, command: str, data: str, sites: Sequence[str] = ()) -> list[Entry]:
    """Return what the budget book keeps of this process's nodes."""
    p = spec.protection
    return [
        Entry(
            run=folder.run or "",
            node=i,
            ledger=folder.run or "",
            command=command,
            name=spec.name,
            data=data,
            folder=str(folder.path.resolve()),
            simulation=spec.simulation,
            relation=p.relation + ("" if p.mechanisms[i].person is None else _PERSON),
            trust=spec.settings.trust,
            epsilon=p.budgets[i],
            delta=p.deltas[i],
            sites=tuple(sites),
        )
        for i in spec.here
    ]


def with_others(
    made: Sequence[Entry], records: Sequence[Records | None], also: Sequence[tuple[str, bool, Sequence[Records]]]
) -> tuple[list[Entry], list[Records | None]]:
    """Add the records of each node that a run names without using them: why, whether they are charged, and which."""
    entries, known = list(made), list(records)
    for why, charged, others in also:
        for entry, own in zip(made, others, strict=True):
            run = f"{entry.run}/{why}"
            named = dataclasses.replace(entry, run=run, command=why)  # entries with one ledger share its budget
            entries.append(named if charged else dataclasses.replace(named, ledger=run, epsilon=0.0, delta=0.0))
            known.append(own)
    return entries, known


def trained_in(run: str, nodes: Sequence[int]) -> list[Records]:
    """Return the records that the book has of a run, for each of these nodes; of a node it does not know, of all."""
    sets = Book().sets_of({run})
    every = [one for own in sets.values() for one in own]
    return [Records("", np.concatenate(sets.get(node, every)), keyed=True) for node in nodes] if sets else []


def enter(
    made: Sequence[Entry], records: Sequence[Records | None], *, resumed: bool, moved: bool = False,
    policy: Policy | None = None, say: Callable[[str], None] = lambda line: _LOG.warning("%s", line),
    counted: Mapping[str, int] | None = None,
) -> None:  # fmt: skip
    """Enter a run in the budget book, after naming what its records have spent in other runs.

    `counted` has the runs that it continues, and how many releases of each its ε counts.

    Guarantee: of a run without a seed, the entry is on the disk when this returns, and the policy allows it.
    """
    book, known = Book(), [(entry, own) for entry, own in zip(made, records, strict=True) if own is not None]
    if all(entry.simulation for entry in made):
        with contextlib.suppress(Refused):  # a simulation spends nothing: it continues without a book
            book.enter([entry for entry, _ in known], [own for _, own in known])
        return

    def check() -> None:
        if policy is None:
            return
        keyed = [(entry, book.known(own)) for entry, own in known]
        for entry, own in keyed:
            before = book.spent_by(own, entry.relation, but=entry.budget)
            before = _with_siblings(before, own, [(e, o) for e, o in keyed if e is not entry])
            relation = entry.relation.removesuffix(_PERSON)
            samples = len(own) if relation == entry.relation else len(np.unique(own[:, -1]))
            refuse_spending(
                policy, epsilon=entry.epsilon, delta=entry.delta, relation=relation, samples=samples, before=before,
            )  # fmt: skip

    if not resumed:
        for line in _spent_elsewhere(book, [(entry, own) for entry, own in known if not own.keyed]):
            say(line)
    book.enter(made, records, resumed=resumed, moved=moved, check=check, counted=counted)


def _with_siblings(before: Total, own: Hashes, others: Sequence[tuple[Entry, Hashes]]) -> Total:
    """Add what other nodes of the same run spend on records that are also this node's."""
    shared = [entry for entry, one in others if np.intersect1d(own, one).size]
    epsilon = sum(math.inf if entry.epsilon is None else entry.epsilon for entry in shared)
    return before._replace(epsilon=before.epsilon + epsilon, delta=before.delta + sum(entry.delta for entry in shared))


def refuse_everywhere(records: Sequence[Records | None], sites: int) -> None:
    """Refuse a person at more of the nodes here than ε is counted for."""
    persons = [np.unique(one.hashes[:, -1]) for one in records if one is not None]
    most = int(np.unique(np.concatenate(persons), return_counts=True)[1].max()) if persons else 0
    if most > sites:
        what = f"a person is at {most} nodes, and ε is counted for a person at {sites}"
        raise Refused(what, f"set privacy.sites_per_person = {most}, or give different persons different identifiers")


def _spent_elsewhere(book: Book, known: Sequence[tuple[Entry, Records]]) -> Iterator[str]:
    """Yield a line for each other run that some of these records were used in."""
    found: dict[tuple[str, str], tuple[Entry, int]] = {}
    for entry, own in known:
        for other, shared in book.overlapping(own.hashes):
            if other.budget != entry.budget:
                found[other.run, other.folder] = other, shared + found.get((other.run, other.folder), (other, 0))[1]
    private = [(other, shared) for other, shared in found.values() if not other.simulation]
    for other, shared in private[:_MOST_NAMED]:
        if other.command == HELD_OUT:
            yield f"{shared:,} of these records are held out by {other.name!r} ({other.folder}) for a test"
            continue
        budget = "no finite ε" if other.epsilon is None else f"ε = {up(other.epsilon)}"
        yield f"{shared:,} of these records are also in {other.name!r} ({other.folder}) under {budget}: the two add up"
    if len(private) > _MOST_NAMED:
        yield f"{len(private) - _MOST_NAMED} more private runs hold some of these records: see `privsgp budget`"
    if simulated := [other.name for other, _ in found.values() if other.simulation]:
        names = ", ".join(sorted(set(simulated))[:_MOST_NAMED])
        yield f"simulations on these records: {names}. If they chose this configuration, that is not counted"
