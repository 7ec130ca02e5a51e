"""What a site shows of a run while it takes part: each site, each link, and why a link fails.

`state` is the one source: `privsgp status` reads it from status.json, Prometheus as metrics. It decides nothing.
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

from privsgp.sites.net.causes import Cause, own_certificate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privsgp.engine.folder import Folder
    from privsgp.sites.run import Network

_EVERY = 0.5  # seconds between two versions of status.json
_LOG = logging.getLogger(__name__)


def state(network: Network) -> dict[str, Any]:
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
        "refused": network.audit.counts(),
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
    return _worded(network.client.failures.get(network.client.relay if is_relayed else peer) or _silence(network, peer))


def _silence(network: Network, peer: int) -> Cause | None:
    """Return that a peer is silent which this site cannot dial: the cause is known there alone."""
    card, is_there = network.agreement.roster[peer], network.members.presence(peer)["there"]
    if card.address is not None or is_there or network.site.card.address is None:
        return None
    return Cause(f"{card.name} does not dial this site", f"run `privsgp status` at {card.name}: it shows the cause")


def _worded(cause: Cause | None) -> dict[str, str | None]:
    return {"error": None, "remedy": None} if cause is None else {"error": cause.what, "remedy": cause.remedy}


@contextlib.contextmanager
def kept(network: Network, folder: Folder) -> Iterator[None]:
    """Keep status.json up to date, and log when this site's own certificate is not valid."""
    ended = threading.Event()

    def keep() -> None:
        logged = None
        while not ended.wait(_EVERY):
            if (cause := own_certificate(network.site)) is not None and cause.what != logged:
                _LOG.warning("no site can exchange messages with this one: %s. To do: %s", *cause)
            logged = None if cause is None else cause.what
            _write(network, folder)

    _write(network, folder)
    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _write(network, folder)


def _write(network: Network, folder: Folder) -> None:
    temporary = folder.path / "private" / "status.new"
    with contextlib.suppress(OSError):  # a full disk: the run itself says so
        temporary.write_text(json.dumps(state(network)))
        temporary.replace(folder.path / "status.json")
