"""A site's part in a run, from the study file to its own model: check, sign, wait for the others, train, see them off.

`join` again after whatever happened goes on from the last commit. Joining a run that is finished here serves others
that are not, until everybody has what he needs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privsgp import data, models
from privsgp.accounting import ledger
from privsgp.accounting import policy as policies
from privsgp.data.dataset import with_classes
from privsgp.data.loading import is_file, read_file, same_file, with_test
from privsgp.data.same_records import is_tested_on_own
from privsgp.data.tables import is_table
from privsgp.engine import checkpoint
from privsgp.engine.folder import Folder
from privsgp.engine.stopping import Stopping
from privsgp.errors import Interrupted, Refused
from privsgp.files import finite, read_bytes, sync_names, write, write_json
from privsgp.gradients import Layout
from privsgp.runs import booked, sums, views
from privsgp.runs import card as cards
from privsgp.runs.summary import measured_by_first
from privsgp.runs.summary import summary as summarised
from privsgp.runs.train import save_model, versions
from privsgp.sites import amend, continuing, signed, status
from privsgp.sites import sums as site_sums
from privsgp.sites.agreement import Agreement, refuse_counted
from privsgp.sites.audit import Audit
from privsgp.sites.identity import Site
from privsgp.sites.net.causes import refuse_own_certificate
from privsgp.sites.net.client import Client
from privsgp.sites.net.relay import Relay
from privsgp.sites.net.server import Server
from privsgp.sites.protocol.gossip import Goodbye, Gossip
from privsgp.sites.protocol.mailbox import Inbox, Outbox, depth, wait_for
from privsgp.sites.protocol.pairs import PairKeys, delete, needs_keys
from privsgp.sites.store import Store
from privsgp.sites.trainer import SiteTrainer
from privsgp.sites.transport import Ended, SitesTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from privsgp.accounting.book import Records
    from privsgp.engine.spec import RunSpec
    from privsgp.engine.trainer import Outcome, Watcher
    from privsgp.runs.config import Config
    from privsgp.sites.sums import Also
    from privsgp.transport.rounding import Rounding

_TICK = 0.1
_NOBODY = -1  # the node of a relay that is no member
_GOODBYE = 5.0  # seconds in which a site that leaves tells the others
_AGAIN = 30.0  # seconds that a site which joins again, having finished, waits at least for anybody to come
_FAREWELL = 3.0  # deadlines after which a site that is not there is not waited for at the end


@dataclass(frozen=True)
class Network:
    """The parts of a site in a run."""

    site: Site
    agreement: Agreement
    node: int
    audit: Audit
    members: Gossip
    inbox: Inbox
    outbox: Outbox
    server: Server
    client: Client
    transport: SitesTransport
    pairs: PairKeys | None
    stopping: Stopping

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Listen and dial."""
        if self.site.listen is not None:
            self.server.start(self.site.listen)
        self.client.start()
        try:
            yield
        finally:
            self.client.stop()
            self.server.stop()

    def until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition holds; return whether it holds after the given seconds."""
        return wait_for(self.members.changed, done, seconds)


def wire(site: Site, agreement: Agreement, folder: Folder, rounding: Rounding | None = None) -> Network:
    """Make the parts of a site in a run, each from those before it; no connection is opened yet.

    `rounding` is for messages of few bits. Without it no new ones can be made, and none that arrive can be read.
    """
    node, kept, private = agreement.node(site), depth(agreement), folder.path / "private"
    changed, stopping = threading.Condition(), Stopping()  # one condition: whatever happens wakes all that wait
    audit = Audit(folder.path / "audit.jsonl")
    store = Store(agreement, node, private / "state.sqlite")
    inbox = Inbox(agreement, node, kept, store, changed, is_open=False, rounding=rounding)
    outbox = Outbox(kept, changed, agreement.most_increments)
    members = Gossip(
        agreement, node, store.begin(), agreement.sign(site), inbox,
        sign=lambda text: site.sign(b"progress", text).hex(),
        accuse=lambda i, of: audit.note(of.kind, agreement.roster[i].name, str(of), **of.evidence),
        keep=lambda peers: signed.keep(folder.path, peers),
    )  # fmt: skip
    pairs = None
    if needs_keys(agreement):
        pairs = PairKeys(site, agreement, node, _pair_key(folder), members.pair_keys)
        pairs.open(begun=folder.checkpoint.exists())
        sync_names(private)
    members.take_up(*signed.known(folder.path))
    leaving = _leaving(folder)
    transport = SitesTransport(site, members, outbox, lambda: stopping.asked or leaving.exists(), rounding)
    relays = agreement.relay is not None and agreement.relay.identity == site.card.identity
    server = Server(site, members, outbox, audit, relay=Relay(changed) if relays else None)
    client = Client(site, members, outbox, audit)
    return Network(site, agreement, node, audit, members, inbox, outbox, server, client, transport, pairs, stopping)


def join(
    study: Path, file: Path, *, home: Path, out: Path | None = None, device: str = "cpu", moved: bool = False,
    watch: Watcher | None = None, say: Callable[[str], None] = lambda _text: None, test: Path | None = None,
    ended: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Take part in a run until it ends, and return the site's summary; `test` are public data to try the model on.

    The model of an evaluation, or that a run begins with, lies beside the study, under its name with .safetensors.
    `ended` is this site's folder of the run that the study continues.
    """
    model = study.with_suffix(".safetensors")
    site, agreement, folder = _opened(study, home, out)
    folder.refuse_unless_writable()
    refuse_own_certificate(site)
    if folder.summary.exists():
        return _serve_again(site, agreement, folder, say)
    if not folder.checkpoint.exists():
        try:
            agreement.refuse_expired()
        except Refused:
            delete(_pair_key(folder))  # of a process that signed in time, and waited for the others
            raise
    if not check_policy(site, agreement):
        say(f"note: there is no policy.toml in {site.home}: nothing but the agreement itself is checked")
    node = agreement.node(site)
    report_alone = lambda line: say(f"note, for this site alone: {line}")  # noqa: E731
    spec, records, also = _spec(agreement, (file, test, model), node, device, report_alone)
    if agreement.is_sum:
        sums.announce(spec, agreement.samples, say)
    amend.close(agreement, node, ended)
    with folder.locked():
        resumed = _has_spent(folder, node)
        _prepare(folder, agreement)
        _enter(site, agreement, folder, spec, (str(file), records, also), resumed=resumed, moved=moved, say=say)
        start = Layout.of(spec.learning.model).flatten(spec.learning.model)
        network = wire(site, agreement, folder, spec.rounding(start[None].cpu()))
        trainer = SiteTrainer(spec, folder, network.transport, network.stopping, watch, network.pairs)
        _take_up_links(folder, network.transport)

        with network.opened(), status.kept(network, folder):
            try:
                _wait_for_signatures(network, say)
                network.members.enter("training")
                outcome = trainer.run()
            except Interrupted as stopped:
                if _leaving(folder).exists():
                    _goodbye(network, folder)
                    say("this site has left the run")
                raise stopped.with_checkpoint(kept=True) from None
            except Ended:
                delete(_pair_key(folder))
                raise
            finally:
                trainer.close()
            summary = _finish(network, folder, spec, outcome, model)
            network.members.enter("finished")
            _see_off(network, say)
        return summary


def _opened(study: Path, home: Path, out: Path | None) -> tuple[Site, Agreement, Folder]:
    """Return a site, a study and the site's folder of it; refuse a run that the site has left."""
    site, agreement = Site.open(home), Agreement.read(study)
    node = agreement.node(site)
    folder = Folder(out or agreement.default_folder, f"-{node}-{node}")
    if folder.run == agreement.run and node in signed.known(folder.path)[1]:
        delete(_pair_key(folder))
        raise Refused(f"{folder.path}: this site has left the run, and cannot join it again", "propose a new agreement")
    return site, agreement, folder


def check_policy(site: Site, agreement: Agreement) -> bool:
    """Refuse what the site's policy.toml does not allow, whatever records the site has; return whether there is one.

    Sums of ε and δ are checked when the records are known, before anything is signed.
    """
    policy = policies.read(site.home / "policy.toml")
    if policy is not None:
        agreement.refuse_policy(policy, agreement.node(site))
    return policy is not None


def _has_spent(folder: Folder, node: int) -> bool:
    """Return whether anything may have been sent from this folder."""
    spent = folder.ledger(node)
    return folder.checkpoint.exists() or (spent.exists() and any(one.charged for one in ledger.read(spent)))


def _enter(
    site: Site, agreement: Agreement, folder: Folder, spec: RunSpec, data: tuple[str, Records, Also], *, resumed: bool,
    moved: bool, say: Callable[[str], None],
) -> None:  # fmt: skip
    """Enter in the budget book what this site promises, before its signature leaves."""
    name, records, also = data
    named = dataclasses.replace(spec, name=agreement.name)
    made = booked.entries(named, folder, "join", name, [card.name for card in agreement.roster])
    if agreement.continues is not None:
        made = [dataclasses.replace(one, ledger=continuing.budget(agreement, one.node)) for one in made]
    policy = policies.read(site.home / "policy.toml")
    every = booked.with_others(made, [records], also)
    told = lambda line: say(f"note: {line}")  # noqa: E731
    before = continuing.counted(agreement, made[0].node)
    booked.enter(*every, resumed=resumed, moved=moved, policy=policy, say=told, counted=before)


def read_own(
    config: Config, file: Path, test: Path | None = None, say: Callable[[str], None] = lambda _line: None,
    *, classes: int | None = None,
) -> data.Dataset:  # fmt: skip
    """Read a site's own file, and public test data; of single values that did not fit, only this site is told.

    `classes` are those of an agreement. Guarantee: without a seed no class was counted in the site's labels.
    """
    d, task = config.data, models.task(config.model.loss)
    if not is_file(file.name) and not d.form.fits(file):
        raise Refused(f"--data {file} is no file that this study reads", "name an .npz, .csv or .parquet file")
    if d.schema is not None and not is_table(file.name):
        raise Refused(f"--data {file} is no table, and the study has a schema", "name a .csv or .parquet file")
    loaded = read_file(file, task, d.form, own=True)
    for line in loaded.notes:
        say(line)
    count = d.classes or loaded.classes or classes
    dataset = loaded.dataset if task == "regression" else with_classes(loaded.dataset, count)
    refuse_counted(config, file, dataset)
    tested = with_test(dataset, test, d.form)
    # what the model will be tried on: test data may have a test set of their own
    if test is not None and (same_file(file, test) or is_tested_on_own(tested)):
        raise Refused(
            f"--test {test} has this site's own records, half of them or more",
            "test data are public: take records that no site learns from",
        )
    return tested


def _spec(
    agreement: Agreement, files: tuple[Path, Path | None, Path], node: int, device: str, say: Callable[[str], None]
) -> tuple[RunSpec, Records, Also]:
    """Return the run of this site, and hashes of its records and of those it holds out, which stay at this site."""
    config, (file, test, model) = agreement.config, files
    dataset = read_own(config, file, test, say, classes=agreement.sample.classes)
    dataset, records, also = site_sums.counted(config, node, dataset, model, say)
    spec = agreement.spec(dataset, node, device, model)
    layout_key = hashlib.sha256(f"privsgp/layout/site/{file.resolve()}".encode()).hexdigest()
    public = spec.simulation or test is not None
    names = tuple(card.name for card in agreement.roster)
    local = dataclasses.replace(spec, layout=layout_key, sites=names, share_metrics=public)
    return local, records, also


def _prepare(folder: Folder, agreement: Agreement) -> None:
    """Make the run's folder, or refuse one of another run."""
    folder.prepare()
    folder.identify(versions(), agreement.run)
    _refuse_other_run(folder, agreement)
    agreement.write(folder.path / "agreement.study")
    write(folder.config, agreement.config.toml())


def _refuse_other_run(folder: Folder, agreement: Agreement) -> None:
    if folder.run != agreement.run:
        raise Refused(f"{folder.path} belongs to another run", "choose another one with --out")


def _pair_key(folder: Folder) -> Path:
    return folder.path / "private" / "pair.key"


def _wait_for_signatures(network: Network, say: Callable[[str], None]) -> None:
    """Wait until all have signed: before that no step is taken."""
    shown = ""
    with network.stopping:
        while missing := network.members.unsigned():
            if (text := f"waiting for the signature of {', '.join(missing)}") != shown:
                say(shown := text)
            if network.transport.stop():
                raise Interrupted(0)
            network.until(lambda: not network.members.unsigned(), _TICK)
    if shown:
        say("all have signed")


def _finish(network: Network, folder: Folder, spec: RunSpec, outcome: Outcome, model: Path) -> dict[str, Any]:
    """Write the site's model, or what a sum says, and its summary."""
    if network.agreement.is_sum:
        found = site_sums.result(network.agreement, spec, outcome, folder.path, model)
        summary = _summary(network, spec, outcome) | {"sum": found}
        write_json(folder.summary, summary)
        return summary
    save_model(folder.node(network.node), Layout.of(spec.learning.model), outcome.state.z[0], spec.card)
    summary = _summary(network, spec, outcome)
    write(folder.path / cards.NAME, cards.markdown(dict(spec.card), views.of(summary, folder.path)))
    write_json(folder.summary, summary)
    return summary


def _summary(network: Network, spec: RunSpec, outcome: Outcome) -> dict[str, Any]:
    """Return what came out at this site: its own ε by its own ledger, and of others what was agreed on."""
    agreement, node, p = network.agreement, network.node, spec.protection
    newest = [network.members.store.seen.get(i) for i in range(spec.nodes)]  # what each site has signed for this one
    spent, releases = list[float | None]([None] * spec.nodes), list[int | None]([None] * spec.nodes)
    spent[node] = finite(p.epsilon(node, outcome.releases[0])) if spec.algorithm.private else None
    releases[node] = outcome.releases[0]
    unseen = ("mean_node_accuracy", "worst_node_accuracy", "consensus_error", "train_loss")  # nobody sees all models
    measured = (
        measured_by_first(spec, outcome) | dict.fromkeys(unseen) | {"virtual_seconds": spec.clock.at(outcome.steps)}
    )
    others = [i for i in range(spec.nodes) if i != node]
    roster = [
        {"name": card.name, "fingerprint": card.fingerprint, "newest": None if one is None else one.header.step}
        for card, one in zip(agreement.roster, newest, strict=True)
    ]
    own = {
        "name": network.site.name, "node": node, "run": agreement.run, "w": float(outcome.state.w[0]),
        "incarnation": network.members.incarnation, "messages": network.transport.report(),
        "refused": network.audit.counts(), "warnings": network.audit.warnings(), "roster": roster,
    }  # fmt: skip
    whole = summarised(spec, outcome, spent, measured, others, node)
    return whole | {"name": agreement.name, "releases": releases, "site": own}


def _see_off(network: Network, say: Callable[[str], None], least: float = 0.0) -> None:
    """Stay until all have what they need of this site; of those that are not there, not for long.

    Until anybody was there, for `least` seconds.
    """
    members, transport, shown, stopping = network.members, network.transport, "", Stopping()
    began, usual = time.monotonic(), _FAREWELL * network.agreement.limits.deadline

    def needing() -> list[int]:
        last = zip(transport.targets, transport.last.tolist(), strict=True)
        return [i for i, step in last if not members.is_served(i, step)]

    with stopping:
        while needed := needing():
            transport.refuse_copy()  # peers take nothing from this process then: it would serve without an end
            names = ", ".join(network.agreement.roster[i].name for i in needed)
            patience = usual if any(one.incarnation for one in members.others.values()) else max(least, usual)
            if stopping.asked or (not any(map(members.is_there, needed)) and time.monotonic() - began > patience):
                say(f"{names} may still need this site's last message: join again when they are back")
                return
            if (text := f"finished; serving {names}") != shown:
                say(shown := text)
            network.until(lambda: not needing(), _TICK)
        network.until(members.all_informed, _GOODBYE)


def _serve_again(site: Site, agreement: Agreement, folder: Folder, say: Callable[[str], None]) -> dict[str, Any]:
    """Serve the last messages of a run that is finished here."""
    summary: dict[str, Any] = json.loads(read_bytes(folder.summary))
    with folder.locked():
        _refuse_other_run(folder, agreement)
        delete(_pair_key(folder))
        network = wire(site, agreement, folder)
        _take_up_links(folder, network.transport)
        network.members.enter("finished")
        with network.opened(), status.kept(network, folder):
            network.transport.serve()
            _see_off(network, say, _AGAIN)
    return summary


def _take_up_links(folder: Folder, transport: SitesTransport) -> None:
    """Take up what earlier processes had taken from links: what arrives is compared with it, from the first moment."""
    if folder.checkpoint.exists():
        sync_names(folder.checkpoint.parent)  # a process that was killed may have named it, and no more
        step = checkpoint.verified(folder.checkpoint, transport.agreement.run).step
        checkpoint.load_arrays(folder.checkpoint, {f"links.{k}": [v] for k, v in transport.arrays().items()})
        transport.restored(step)


def _leaving(folder: Folder) -> Path:
    """Return the file with which `leave` asks the process that is in the run."""
    return folder.path / "private" / "leaving"


def leave(study: Path, *, home: Path, out: Path | None = None) -> bool:
    """Leave a run permanently; return whether this process, and not the one in the run, could inform the others."""
    site, agreement, folder = _opened(study, home, out)
    if not folder.config.exists():
        raise Refused(f"{folder.path} holds no run of {agreement.name}", "name its folder with --out")
    _refuse_other_run(folder, agreement)
    _leaving(folder).touch(0o600)
    try:
        with folder.locked():
            network = wire(site, agreement, folder)
            _take_up_links(folder, network.transport)
            with network.opened():
                network.transport.serve()
                met = network.members.others.values()
                network.until(lambda: all(one.incarnation for one in met), _GOODBYE)
                _goodbye(network, folder)
    except Refused as refused:
        if "in use by another process" not in refused.what:
            raise
        return False
    return True


def _goodbye(network: Network, folder: Folder) -> None:
    """Send this site's last messages to the sites that are online, sign its departure, and inform the others."""
    network.until(lambda: _delivered(network), max(_GOODBYE, network.agreement.limits.deadline))
    network.members.leave(Goodbye.make(network.site, network.agreement.run, network.transport.taken()))
    delete(_pair_key(folder))
    network.until(network.members.all_informed, _GOODBYE)


def _delivered(network: Network) -> bool:
    """Tell whether all targets that are there, or may be, have this site's last messages."""
    members, last = network.members, zip(network.transport.targets, network.transport.last.tolist(), strict=True)
    new = set(members.strangers())
    return all(members.has_newest(i, step) for i, step in last if step >= 0 and (i in new or members.is_there(i)))


def relay(
    study: Path, *, home: Path, audit: Path, ended: Callable[[], bool], say: Callable[[str], None] = lambda _text: None
) -> None:
    """Carry sealed messages of a run between sites that cannot be dialled, until the end is asked for."""
    site, agreement = Site.open(home), Agreement.read(study)
    if agreement.relay is None or agreement.relay != site.card:
        raise Refused(f"{site.name} is not the relay of {agreement.name}", "see `privsgp agree show`")
    if site.card.identity in [card.identity for card in agreement.roster]:
        raise Refused(f"{site.name} is a member of {agreement.name}", "its `privsgp join` relays too")
    members = Gossip(agreement, _NOBODY, 1, "")
    server = Server(site, members, Outbox(1), Audit(audit), relay=Relay())
    server.start(site.listen or "")
    say(f"relaying at {site.listen}; Ctrl-C ends it. Messages are sealed: this machine cannot read them")
    try:
        while not ended():
            time.sleep(_TICK)
    finally:
        server.stop()
