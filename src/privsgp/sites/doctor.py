"""Checks before a run: policy, names, ports, certificates, clocks, proxies, TLS interception.

Nothing is signed, and each site that can be dialled gets a call that does not exist: its answer shows that it accepts
this site's certificate.
"""

from __future__ import annotations

import datetime as dt
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from privsgp.accounting.book import Book
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.sites.net.causes import cause_of, own_certificate
from privsgp.sites.net.client import dialled
from privsgp.sites.net.server import SERVICE
from privsgp.sites.net.tls import grpc
from privsgp.sites.run import check_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Card, Site

_PATIENCE = 5.0
_SOON = dt.timedelta(days=7)


class _Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    fine: bool
    text: str


def examine(site: Site, agreement: Agreement) -> list[_Finding]:
    """Look at everything that can be looked at from here."""
    looks: dict[str, Callable[[Site, Agreement], str]] = {
        "roster": _member,
        "policy": _policy,
        "clock": _clock,
        "certificate": _certificate,
        "own port": _port,
    }
    others = [card for card in agreement.roster if card.identity != site.card.identity]
    used = agreement.trusted[len(agreement.roster) :] if site.card.address is None else ()  # a relay that is no member
    looks |= {card.name: partial(_peer, card) for card in (*others, *used)}
    return [_found(what, look, site, agreement) for what, look in looks.items()] + _remaining_keys(_runs(agreement))


def _runs(agreement: Agreement) -> set[Path]:
    return {agreement.default_folder.resolve(), *(Path(entry.folder) for entry in Book().entries())}


def _found(what: str, look: Callable[[Site, Agreement], str], site: Site, agreement: Agreement) -> _Finding:
    try:
        return _Finding(what, fine=True, text=look(site, agreement))
    except Refused as refused:
        return _Finding(what, fine=False, text=f"{refused.what}: {refused.remedy}")


def _member(site: Site, agreement: Agreement) -> str:
    if agreement.relay == site.card and site.card not in agreement.roster:
        return f"{site.name} is the relay of {agreement.name}"
    return f"{site.name} is node {agreement.node(site)} of {agreement.name}"


def _policy(site: Site, agreement: Agreement) -> str:
    has_policy = site.card in agreement.roster and check_policy(site, agreement)
    return f"{site.home / 'policy.toml'} allows it" if has_policy else f"there is no policy.toml in {site.home}"


def _clock(_site: Site, agreement: Agreement) -> str:
    now, created = dt.datetime.now(dt.UTC), dt.datetime.fromisoformat(agreement.created)
    if now < created - dt.timedelta(hours=1):
        raise Refused(f"it is {now:%Y-%m-%d %H:%M} here, before the study was made ({created})", "set the clock")
    agreement.refuse_expired(now)
    return f"{now:%Y-%m-%d %H:%M} UTC; join until {agreement.expires}"


def _certificate(site: Site, _agreement: Agreement) -> str:
    if (cause := own_certificate(site)) is not None:
        raise Refused(*cause)
    until = site.certificate.not_valid_after_utc
    soon = ": renew it soon, privsgp site rotate" if until < dt.datetime.now(dt.UTC) + _SOON else ""
    return f"good until {until:%Y-%m-%d}{soon}"


def _remaining_keys(runs: set[Path]) -> list[_Finding]:
    """List the keys for shared noise of runs that nobody continues at the moment."""
    keys = [run / "private" / "pair.key" for run in sorted(runs) if (run / "private" / "pair.key").exists()]
    text = "is left from a run that has stopped: continue the run, or `privsgp leave` deletes it"
    unused = [key for key in keys if not _in_use(key.parent.parent)]  # a run that is in use needs its key
    return [_Finding("key left", fine=True, text=f"{key} {text}") for key in unused]


def _port(site: Site, agreement: Agreement) -> str:
    """Try to listen where this site says it does."""
    if site.listen is None:
        return "none: this site dials out only"
    host, _, port = site.listen.rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return f"can listen at {site.listen}; others dial {site.card.address}"
    except OSError as error:
        if any(Folder(run).run == agreement.run and _in_use(run) for run in _runs(agreement)):
            return f"{site.listen} is used by the process of this run"
        raise Refused(
            f"cannot listen at {site.listen}: {error.strerror}", "stop the run that uses this port, or change --listen"
        ) from error


def _in_use(run: Path) -> bool:
    try:
        with Folder(run).locked():
            return False
    except (Refused, OSError):
        return True


def _peer(card: Card, site: Site, agreement: Agreement) -> str:
    """Dial a site as `join` does."""
    if card.address is None:
        return "dials out only"
    try:
        with dialled(site, card) as channel:
            channel.unary_unary(f"/{SERVICE}/Doctor")(b"", timeout=_PATIENCE)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNIMPLEMENTED:
            raise Refused(*cause_of(error, site, card, agreement.command(card))) from error
    return f"{card.address} answers with the key of its card, and accepts this site"
