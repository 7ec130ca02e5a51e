"""What stands between this site and a run: names, ports, certificates, clocks, proxies, and who looks into TLS.

Nothing is signed or sent but a TLS handshake with each site that can be dialled.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from cryptography import x509

from privsgp.accounting.book import Book
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.sites.identity import tls_name
from privsgp.sites.net.causes import cause_of, own_certificate
from privsgp.sites.run import default_out

if TYPE_CHECKING:
    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Card, Site
    from privsgp.sites.net.causes import Cause

_PATIENCE = 5.0
_SOON = dt.timedelta(days=7)


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    fine: bool
    text: str


def examine(site: Site, agreement: Agreement) -> list[Finding]:
    """Look at everything that can be looked at from here."""
    now = dt.datetime.now(dt.UTC)
    found = [_member(site, agreement), _clock(agreement, now), _certificate(site, now), _door(site)]
    found += _left_keys({default_out(agreement).resolve(), *(Path(entry.folder) for entry in Book().entries())})
    others = [card for card in agreement.roster if card.identity != site.card.identity]
    used = agreement.trusted[len(agreement.roster) :] if site.card.address is None else ()  # a relay that is no member
    return found + [_peer(site, card, agreement) for card in (*others, *used)]


def _member(site: Site, agreement: Agreement) -> Finding:
    if agreement.relay == site.card and site.card not in agreement.roster:
        return Finding("roster", fine=True, text=f"{site.name} is the relay of {agreement.name}")
    try:
        return Finding("roster", fine=True, text=f"{site.name} is node {agreement.node(site)} of {agreement.name}")
    except Refused as refused:
        return Finding("roster", fine=False, text=refused.what)


def _clock(agreement: Agreement, now: dt.datetime) -> Finding:
    created = dt.datetime.fromisoformat(agreement.values["created"])
    if now < created - dt.timedelta(hours=1):
        return Finding(
            "clock", fine=False, text=f"it is {now:%Y-%m-%d %H:%M} here, before the study was made ({created})"
        )
    try:
        agreement.refuse_expired(now)
    except Refused as refused:
        return Finding("clock", fine=False, text=refused.what)
    return Finding("clock", fine=True, text=f"{now:%Y-%m-%d %H:%M} UTC; join until {agreement.values['expires']}")


def _certificate(site: Site, now: dt.datetime) -> Finding:
    if (cause := own_certificate(site)) is not None:
        return Finding("certificate", fine=False, text=_text(cause))
    until = site.certificate.not_valid_after_utc
    soon = ": renew it soon, privsgp site rotate" if until < now + _SOON else ""
    return Finding("certificate", fine=True, text=f"good until {until:%Y-%m-%d}{soon}")


def _left_keys(runs: set[Path]) -> list[Finding]:
    """List the keys for shared noise of runs that nobody continues at the moment."""
    found = []
    for run in sorted(runs):
        key = run / "private" / "pair.key"
        with contextlib.suppress(Refused, OSError):  # the run is in use: it needs its key
            if key.exists():
                with Folder(run).locked():
                    text = f"{key} is left from a run that has stopped: continue the run, or `privsgp leave` deletes it"
                    found.append(Finding("key left", fine=True, text=text))
    return found


def _door(site: Site) -> Finding:
    """Try to listen where this site says it does."""
    if site.listen is None:
        return Finding("own door", fine=True, text="none: this site dials out only")
    host, port = _split(site.listen)
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except OSError as error:
        return Finding("own door", fine=False, text=f"cannot listen at {site.listen}: {error.strerror} (is a run on?)")
    return Finding("own door", fine=True, text=f"can listen at {site.listen}; others dial {site.card.address}")


def _peer(site: Site, card: Card, agreement: Agreement) -> Finding:
    """Dial a site as far as its first byte after TLS: it sends one if it accepts this site's certificate."""
    if card.address is None:
        return Finding(card.name, fine=True, text=f"dials out only{_way(site, card, agreement)}")
    try:
        with (
            _dialled(site, card.address) as plain,
            _verified(site, card).wrap_socket(plain, server_hostname=tls_name(card.name)) as secured,
        ):
            if not secured.recv(1):
                raise ConnectionError("failed to connect: Socket closed")
    except ssl.SSLCertVerificationError as error:
        cause = cause_of(error, site, card)
        return Finding(card.name, fine=False, text=f"{cause.what} ({_issuer(site, card)}): {cause.remedy}")
    except OSError as error:
        return Finding(card.name, fine=False, text=_text(cause_of(error, site, card)))
    return Finding(card.name, fine=True, text=f"{card.address} answers with the key of its card, and accepts this site")


def _way(site: Site, card: Card, agreement: Agreement) -> str:
    """Say how messages travel between this site and one that nobody can dial."""
    if site.card.address is not None:
        return ""
    ends = {one.identity: node for node, one in enumerate(agreement.roster)}
    own, other = ends.get(site.card.identity), ends[card.identity]
    if agreement.relay is None or not {(own, other), (other, own)} & agreement.links:
        return ", as this site does: the graph has no link between the two"
    return f", as this site does: their messages travel through the relay {agreement.relay.name}"


def _text(cause: Cause) -> str:
    return f"{cause.what}: {cause.remedy}"


def _dialled(site: Site, address: str) -> socket.socket:
    """Connect to an address, through the site's proxy where it has one."""
    if site.proxy is None:
        return socket.create_connection(_split(address), _PATIENCE)
    proxy = urlsplit(site.proxy)
    plain = socket.create_connection((proxy.hostname or "", proxy.port or 80), _PATIENCE)
    plain.sendall(f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    code = [*plain.recv(4096).decode(errors="replace").split(), "", ""][1]
    if code != "200":
        plain.close()
        raise ConnectionError(f"HTTP proxy returned response code {code[:80]!r}")
    return plain


class _Secured(ssl.SSLSocket):
    """A TLS socket that closes if the connection was reset before TLS began; Python's own stays open."""

    def getpeername(self) -> Any:  # noqa: ANN401 - as Python has it
        try:
            return super().getpeername()
        except OSError as error:
            self.close()
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from error


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class, context.minimum_version = _Secured, ssl.TLSVersion.TLSv1_3
    return context


def _verified(site: Site, card: Card) -> ssl.SSLContext:
    """Return TLS as `join` uses it: this site's certificate goes to nobody but the holder of the card's key."""
    context = _context()
    context.load_verify_locations(cadata=card.authority)
    context.load_cert_chain(site.home / "tls.key")
    context.set_alpn_protocols(["h2"])
    return context


def _issuer(site: Site, card: Card) -> str:
    """Say who issued the certificate that is shown at a site's address, whatever it is."""
    context = _context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is looked at, not trusted
    try:
        with (
            _dialled(site, card.address or "") as plain,
            context.wrap_socket(plain, server_hostname=tls_name(card.name)) as secured,
        ):
            shown = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError) as error:
        return f"its issuer could not be read: {error}"
    since, until = shown.not_valid_before_utc, shown.not_valid_after_utc
    return f"issued by {shown.issuer.rfc4514_string()}, valid from {since:%Y-%m-%d} to {until:%Y-%m-%d}"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
