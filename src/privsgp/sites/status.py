"""The status of a run at a site: each site, each link, and the cause of a failure.

`state` is the one source: `privsgp status` and its pages read it from status.json. It changes no
decision, and is independent of records: steps, links, messages, sites, refusals.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from privsgp.accounting import ledger, policy
from privsgp.accounting.book import Book
from privsgp.errors import Refused
from privsgp.files import finite, read_bytes
from privsgp.sites.net.causes import Cause, own_certificate
from privsgp.sites.protocol.peers import RELAY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from privsgp.engine.folder import Folder
    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Site
    from privsgp.sites.run import Network

_EVERY = 0.5  # seconds between two versions of status.json
_LOG = logging.getLogger(__name__)


def state(network: Network, seconds_left: float | None = None) -> dict[str, Any]:
    """Return the state of a run as this site sees it: JSON."""
    members, roster, node = network.members, network.agreement.roster, network.node
    sites = {roster[i].name: members.presence(i) | _error(network, i) for i in members.others}
    links = sorted(link for link in network.agreement.links if node in link)
    return {
        "run": network.agreement.run,
        "at": time.time(),
        "own": {"name": roster[node].name, "step": members.step, "phase": members.phase, "pid": os.getpid()}
        | _worded(own_certificate(network.site)),
        "sites": sites,
        "links": [_link(network, *link) for link in links],
        "rounds": members.agreement.rounds,
        "seconds_left": seconds_left,
        "refused": network.audit.counts(),
        "newest": network.audit.newest(),
        "warnings": network.audit.warnings(),
    }


def _link(network: Network, source: int, target: int) -> dict[str, Any]:
    """Return the last message over a link, and why there is no newer one if the link fails."""
    roster, is_sent = network.agreement.roster, source == network.node
    peer = target if is_sent else source
    step, at = network.members.others[peer].delivered
    if not is_sent:
        step, at = network.inbox.newest(peer), network.inbox.arrived.get(peer, -math.inf)
    age = time.monotonic() - at
    return {
        "source": roster[source].name,
        "target": roster[target].name,
        "step": None if step < 0 else step,
        "seconds_ago": round(age, 1) if age < 1e5 else None,
        "bytes": network.outbox.bytes_to[peer] if is_sent else network.inbox.bytes_from[peer],
    } | _error(network, peer)


def _error(network: Network, peer: int) -> dict[str, str | None]:
    if not network.members.is_needed(peer):
        return _worded(None)
    is_relayed = network.agreement.is_relayed((network.node, peer))
    return _worded(network.client.failures.get(RELAY if is_relayed else peer) or _silence(network, peer))


def _silence(network: Network, peer: int) -> Cause | None:
    """Return that a peer is silent which this site cannot dial: the cause is known there alone."""
    card, is_there = network.agreement.roster[peer], network.members.presence(peer)["there"]
    if card.address is not None or is_there or network.site.card.address is None:
        return None
    return Cause(f"{card.name} does not dial this site", f"run `privsgp status` at {card.name}: it shows the cause")


def _faults(network: Network) -> dict[str, dict[str, str]]:
    """Return what no call of this site finds out: its own certificate is not valid, or a peer has ceased to dial it."""
    found = {}
    if (own := own_certificate(network.site)) is not None:
        text = f"no site can exchange messages with this one: {own.what}. To do: {own.remedy}"
        found[text] = {"remedy": own.remedy}
    for peer, other in network.members.others.items():
        if other.incarnation and network.members.is_needed(peer) and (cause := _silence(network, peer)) is not None:
            name = network.agreement.roster[peer].name
            text = f"no messages to or from {name}: {cause.what}. To do: {cause.remedy}"
            found[text] = {"peer": name, "remedy": cause.remedy}
    return found


def _worded(cause: Cause | None) -> dict[str, str | None]:
    return {"error": None, "remedy": None} if cause is None else {"error": cause.what, "remedy": cause.remedy}


@contextlib.contextmanager
def kept(network: Network, folder: Folder) -> Iterator[None]:
    """Keep status.json up to date, and log when this site's own certificate is not valid."""
    ended = threading.Event()
    began, first = time.monotonic(), network.members.step

    def seconds_left() -> float | None:
        """Return how long the rest takes if it goes on as in this process; None before its first step."""
        done, rest = network.members.step - first, network.members.agreement.rounds - network.members.step
        return None if done < 1 else round((time.monotonic() - began) / done * max(rest, 0), 1)

    def keep() -> None:
        logged: dict[str, dict[str, str]] = {}
        while not ended.wait(_EVERY):
            found = _faults(network)
            for text in found.keys() - logged:
                _LOG.warning(text, extra=found[text])
            logged = found
            _write(network, folder, seconds_left())

    _write(network, folder)
    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _write(network, folder)


def _write(network: Network, folder: Folder, seconds_left: float | None = None) -> None:
    temporary = folder.path / "private" / "status.new"
    with contextlib.suppress(OSError):  # a full disk: the run itself says so
        temporary.write_text(json.dumps(state(network, seconds_left)))
        temporary.replace(folder.path / "status.json")


def read(agreement: Agreement, site: Site, folder: Path) -> dict[str, Any]:
    """Return what status.json, the ledger and the budget book of a site say of its run: JSON."""
    path = folder / "status.json"
    if not path.exists():
        raise Refused(f"{folder} has no status.json", "join first, or name the run's folder with --out")
    found: dict[str, Any] = json.loads(read_bytes(path))
    if "newest" not in found:
        raise Refused(f"{path} is of an older release", "join again, or show it with that release")
    node = agreement.node(site)
    kept = folder / "ledger" / f"node-{node}.jsonl"
    segments = ledger.read(kept) if kept.exists() else []
    sent, charged = sum(one.sent for one in segments), sum(one.charged for one in segments)
    return found | {
        "releases": sent, "reserved": charged - sent, "epsilon_budget": agreement.epsilon[node],
        "honest": agreement.honest, "budget_book": _budget(agreement.run, node, site),
    }  # fmt: skip


def _budget(run: str, node: int, site: Site) -> dict[str, float | None] | None:
    """Return what the record that has spent most has spent over all runs, and what policy.toml allows in all."""
    for one in Book().data_sets():
        mine = [entry for entry in one.entries if (entry.run, entry.node) == (run, node)]
        if mine and mine[0].relation == one.relation:
            limits = policy.read(site.home / "policy.toml") or policy.Policy()
            return {
                "epsilon_spent": finite(one.spent.epsilon), "delta_spent": one.spent.delta,
                "epsilon_total": limits.epsilon_total, "delta_total": limits.delta_total,
            }  # fmt: skip
    return None
