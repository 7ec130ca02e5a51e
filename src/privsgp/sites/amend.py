"""Continue a run with other sites: one lost its disk, a key was stolen, a site is added.

`amend` writes a successor of the run's agreement, which all sites of the new run sign by joining. `close` ends the old
run at a site for good, before the site signs the new one.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file

from privsgp.accounting import ledger
from privsgp.accounting.book import Book
from privsgp.accounting.ledger import Ledger
from privsgp.data.dataset import nobody
from privsgp.engine import checkpoint
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.gradients import Layout
from privsgp.runs import config as configs
from privsgp.runs.problem import first_model
from privsgp.runs.train import save_model
from privsgp.sites import signed
from privsgp.sites.agreement import Agreement, propose
from privsgp.sites.protocol.pairs import delete
from privsgp.sites.store import Store
from privsgp.sites.study import Continues

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privsgp.runs.config import Config
    from privsgp.sites.identity import Card, Site

_PER_NODE = (("privacy", "epsilon"), ("privacy", "delta"), ("privacy", "sigma"), ("algorithm", "weights"))


@dataclass(frozen=True)
class Changes:
    """The changes from a run to the one that continues it; sites of the ended run by their names."""

    revoked: Sequence[str] = ()  # whose key is revoked; without a new card the site is not in the new run
    replaced: dict[str, Card] = field(default_factory=dict)  # the new card of a site whose key is revoked
    lost: Sequence[str] = ()  # whose ledger is lost: all steps of the ended run count as released
    added: Sequence[tuple[Card, int]] = ()  # new sites, each with its number of samples
    releases: int | None = None  # of every other site in the ended run; None: the newest step that this site knows of
    settings: Sequence[str] = ()  # KEY=VALUE


def amend(ended: Agreement, site: Site, folder: Path, changes: Changes, output: Path, days: float = 30.0) -> Agreement:
    """Write a study that continues a run, and beside it the model it begins with: that of this site's run folder.

    The model is what this site has released, and what it received. So it costs nothing more.
    """
    names = [card.name for card in ended.roster]
    if unknown := {*changes.revoked, *changes.replaced, *changes.lost} - set(names):
        raise Refused(f"{', '.join(sorted(unknown))}: no site of {ended.name}", f"its sites are {', '.join(names)}")
    files = _folder(ended.node(site), folder)
    signatures = signed.known(folder)[0]
    if files.run != ended.run or len(signatures) < len(names):
        raise Refused(
            f"{folder} does not hold the signatures of all sites of {ended.name}",
            "amend at a site that was in the run, and name its run folder with --run; a run that never began has "
            "spent nothing: propose a new one",
        )
    with files.locked():
        charged = _charged(files, ended.node(site))
        known = max(charged, _newest(ended, ended.node(site), files)) if changes.releases is None else changes.releases
        start = _start(ended, files)
    revoked = {*changes.revoked, *changes.replaced}
    kept = [i for i, name in enumerate(names) if name not in revoked or name in changes.replaced]
    nodes = [*kept, *[None] * len(changes.added)]
    cards = [changes.replaced.get(names[i], ended.roster[i]) for i in kept] + [card for card, _ in changes.added]
    counts = [ended.steps if names[i] in changes.lost else min(known, ended.steps) for i in kept]
    continues = Continues.model_validate({
        "study": ended.values, "signatures": [signatures[i] for i in range(len(names))], "nodes": nodes,
        "releases": [*counts, *[0] * len(changes.added)],
        "revoked": [card.identity for card in ended.roster if card.name in revoked],
        "starts_from_model": start is not None,
    })  # fmt: skip
    config = _config(ended, kept, changes, cards, min(known, ended.steps))
    model = output.with_suffix(".safetensors")
    if start is not None:
        save_model(model, *start, {})
    relay = {card.identity: changes.replaced.get(card.name) for card in ended.roster if card.name in revoked}
    carrier = ended.relay and relay.get(ended.relay.identity, ended.relay)
    limits = ended.limits.model_copy(update={"fewest": min(ended.limits.fewest, len(cards))})
    blank = nobody(ended.sample.shape, ended.sample.target, ended.sample.classes, config.data.tokens)
    made = propose(
        config, cards, blank, name=output.stem, limits=limits, days=days, relay=carrier, continues=continues,
        start=None if start is None else model,
    )  # fmt: skip
    made.write(output)
    return made


def close(study: Agreement, node: int, folder: Path | None) -> None:
    """End the run that a study continues at this site; refuse a site that has released more there than is counted.

    Guarantee: when this returns, no step of the ended run can be released from that folder any more, and all that was
    is counted in the study.
    """
    c = study.continues
    if c is None or (i := c.nodes[node]) is None or not study.config.private:
        return
    ended, agreed = c.study, c.releases[node]
    files = _folder(i, folder or ended.default_folder)
    if files.run != ended.run or not files.ledger(i).exists():
        if agreed < ended.steps:
            raise Refused(
                f"{files.path} does not hold this site's ledger of {ended.name}, of which {study.name} counts {agreed} "
                "releases",
                f"name the run folder with --ended. If it is lost, ask for agree amend … --lost {ended.roster[i].name}",
            )
        return
    with files.locked():
        charged = _charged(files, i, close=True)
    if charged > agreed:
        raise Refused(
            f"{files.ledger(i)} counts {charged} releases of {ended.name}, and {study.name} counts {agreed}",
            f"nothing was signed: ask for: agree amend … --releases {charged}",
        )
    delete(files.path / "private" / "pair.key")


def _folder(node: int, path: Path) -> Folder:
    return Folder(path, f"-{node}-{node}")


def _charged(files: Folder, node: int, *, close: bool = False) -> int:
    """Return what a site's ledger of a run counts, with the step of its last commit; `close` lets nothing follow."""
    path, since = files.ledger(node), 0
    if not path.exists():
        return 0  # a run without noise
    if files.checkpoint.exists():
        since = checkpoint.verified(files.checkpoint, files.run or "").step + 1
    book, run = Book(), files.run or ""
    marks = book.marks(run).get(node, [])
    (segment,) = ledger.read(path, marks)
    since = min(since, segment.header.steps)
    if not close:
        return max(segment.charged, since)
    with Ledger.open(path, segment.header, marks, since, commits=True) as opened:
        opened.close()
        if marks:
            book.remember(run, {node: opened.mark()})
        return max(opened.charged, since)


def _newest(ended: Agreement, node: int, files: Folder) -> int:
    """Return how many steps any site has made, as far as this site knows."""
    with closing(Store(ended, node, files.path / "private" / "state.sqlite")) as store:
        return max((one.header.step + 1 for one in (*store.seen.values(), *store.heard.values())), default=0)


def _start(ended: Agreement, files: Folder) -> tuple[Layout, Any] | None:
    """Return this site's model in the ended run: z of its last commit; None if there is none."""
    if not files.checkpoint.exists():
        return None
    checkpoint.verified(files.checkpoint, files.run or "")
    held, sample = load_file(files.checkpoint), ended.sample
    model, _ = first_model(ended.config, tuple(sample.shape), tuple(sample.target), sample.classes)
    return Layout.of(model), (held["x"] / held["w"][:, None]).to(held["x"].dtype)[0]


def _config(ended: Agreement, kept: Sequence[int], changes: Changes, cards: Sequence[Card], known: int) -> Config:
    """Return the configuration of the new run: that of the ended one for other sites, and the steps that are left."""
    values, every = ended.config.model_dump(), ended.config.algorithm.local_steps
    sizes = [ended.samples[i] for i in kept] + [J for _, J in changes.added]
    sites = None if ended.config.data.sites is None else [card.name for card in cards]
    values["data"] |= {"nodes": len(sizes), "sizes": sizes, "sites": sites}
    for section, key in _PER_NODE:
        if isinstance(given := values[section].get(key), list):
            values[section][key] = [given[i] for i in kept]
    values["algorithm"]["steps"] = (ended.steps - known) // every * every or ended.steps
    return configs.parse(values, list(changes.settings))
