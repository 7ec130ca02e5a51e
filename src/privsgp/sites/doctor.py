"""What stands between this site and a run: names, ports, certificates, clocks, proxies, and who looks into TLS.

Nothing is signed or sent but a TLS handshake with each site that can be dialled.
"""

from __future__ import annotations

import datetime as dt
import socket
import ssl
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from cryptography import x509

from privsgp.errors import Refused
from privsgp.sites.identity import tls_name

if TYPE_CHECKING:
    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Card, Site

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
    others = [card for card in agreement.roster if card.identity != site.card.identity]
    return found + [_peer(site, card, now) for card in others]


def _member(site: Site, agreement: Agreement) -> Finding:
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
    until = site.certificate.not_valid_after_utc
    if until < now:
        return Finding("certificate", fine=False, text=f"expired on {until:%Y-%m-%d}: privsgp site rotate")
    soon = ": renew it soon, privsgp site rotate" if until < now + _SOON else ""
    return Finding("certificate", fine=True, text=f"good until {until:%Y-%m-%d}{soon}")


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


def _peer(site: Site, card: Card, now: dt.datetime) -> Finding:
    """Dial a site as far as TLS."""
    if card.address is None:
        own = site.card.address is not None
        return Finding(
            card.name, fine=own, text="dials out only" + ("" if own else ", and so do we: no message between us")
        )
    try:
        with _dialled(site, card.address) as plain:
            shown = _shown(site, card, plain)
    except OSError as error:
        return Finding(card.name, fine=False, text=_why(card.address, site.proxy, error))
    if not card.issued(shown):
        issuer = shown.issuer.rfc4514_string()
        text = f"{card.address} shows a certificate of {issuer}: another server, or something looks into TLS on the way"
        return Finding(card.name, fine=False, text=text)
    if not shown.not_valid_before_utc <= now <= shown.not_valid_after_utc:
        until = f"{shown.not_valid_after_utc:%Y-%m-%d %H:%M}"
        return Finding(
            card.name, fine=False, text=f"its certificate is good until {until}: it must rotate, or clocks differ"
        )
    return Finding(card.name, fine=True, text=f"{card.address} answers with the key of its card")


def _dialled(site: Site, address: str) -> socket.socket:
    """Connect to an address, through the site's proxy where it has one."""
    if site.proxy is None:
        return socket.create_connection(_split(address), _PATIENCE)
    proxy = urlsplit(site.proxy)
    plain = socket.create_connection((proxy.hostname or "", proxy.port or 80), _PATIENCE)
    plain.sendall(f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    answer = plain.recv(4096).split(b"\r\n")[0]
    if b" 200" not in answer:
        plain.close()
        raise ConnectionRefusedError(0, f"the proxy says {answer.decode(errors='replace')[:80]!r}")
    return plain


def _shown(site: Site, card: Card, plain: socket.socket) -> x509.Certificate:
    """Return the certificate that is shown, whatever it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is looked at, not trusted
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(site.home / "tls.key")
    with context.wrap_socket(plain, server_hostname=tls_name(card.name)) as secured:
        return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")


def _why(address: str, proxy: str | None, error: OSError) -> str:
    through = f" through {proxy}" if proxy else ""
    if isinstance(error, socket.gaierror):
        return f"{address}: no such name{through}"
    if isinstance(error, ssl.SSLError):
        return f"{address}: whoever answers does not speak TLS as sites do ({error.reason})"
    if isinstance(error, TimeoutError):
        return f"{address}: no answer in {_PATIENCE:g} s{through}: a firewall?"
    return f"{address}: {error.strerror or error}{through}: nobody has joined there yet, or a firewall says no"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
