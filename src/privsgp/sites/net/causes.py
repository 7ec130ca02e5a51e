"""Why a link between two sites fails: the cause, and what to do about it.

gRPC, the operating system and TLS report failures in texts of their own. `cause_of` is the one place that reads them.
A server that does not accept a certificate closes the connection and sends no reason. So the site that dials also looks
at its own certificate.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, NamedTuple

from privsgp.errors import Refused
from privsgp.sites.net.tls import grpc
from privsgp.sites.protocol.frames import Rejected

if TYPE_CHECKING:
    from privsgp.sites.identity import Card, Site

_LONGEST = 300  # characters of a peer's own text
_ANSWERS = {  # the peer was reached, and said no
    grpc.StatusCode.INVALID_ARGUMENT: ("{name} refused a message of this site ({text})", "read audit.jsonl at {name}"),
    grpc.StatusCode.PERMISSION_DENIED: ("{name} refused this site ({text})", "compare `privsgp agree show` at both"),
    grpc.StatusCode.INTERNAL: ("{name} failed to answer", "read the log at {name}"),
}
_CAUSES = (  # the first that fits
    ("certificate has expired",
     "the certificate of {name} has expired",
     "{name} runs `privsgp site rotate`, and joins again. If the clock here ({clock}) is wrong, set it"),
    ("certificate is not yet valid",
     "the certificate of {name} is not valid yet",
     "compare the clock here ({clock}) with the clock at {name}, and set the wrong one"),
    ("CERTIFICATE_VERIFY_FAILED|Hostname Verification",
     "{address} shows another key than the card of {name}",
     "another server answers there, or a device on the way opens TLS"),
    ("HTTP proxy returned",
     "the proxy {proxy} refused to connect to {address}",
     "ask the administrator of the proxy to allow CONNECT to {address}"),
    ("lookup failed|resolving|Name or service not known|name resolution|No address associated|nodename nor",
     "the name in {way} was not found",
     "compare the address with {name}, and check the name server of this machine"),
    ("Connection refused",
     "{way} refuses the connection",
     "ask {name} whether `privsgp {command}` runs there, and check the firewalls between the two"),
    ("Deadline Exceeded|timed out|Timeout|timeout|Endpoint closing",
     "no answer from {way}",
     "ask {name} whether `privsgp {command}` runs there, and check for a firewall that drops packets"),
    ("No route to host|nreachable|Invalid argument",  # the last by a route that drops packets
     "{way} is unreachable from here",
     "check the network and the routes of this machine"),
    (r"Handshake read failed|EOF occurred|(failed to connect.*|^\[Errno \d+\] )Connection reset",
     "{way} closes the connection before TLS is set up",
     "wait: privsgp dials again. {name} may have too many connections open, or a firewall closes them"),
    ("WRONG_VERSION_NUMBER|SSL",
     "{way} does not answer in TLS 1.3",
     "another program answers there: compare host and port with {name}"),
    ("failed to connect.*Socket closed",
     "{name} does not accept the certificate of this site",
     "compare the clock here ({clock}) with the clock at {name}, and `privsgp agree show` at both"),
)  # fmt: skip


class Cause(NamedTuple):
    """Why a link fails, and what to do about it."""

    what: str
    remedy: str


def cause_of(error: Exception, site: Site, card: Card, command: str = "join") -> Cause:
    """Return why `site` cannot exchange messages with the site of a card, where `privsgp command` has to run."""
    if isinstance(error, Rejected):
        return Cause(
            f"{card.name} sent a message that this site refuses: {error}", "read audit.jsonl in the run folder"
        )
    code = error.code() if isinstance(error, grpc.Call) else None
    text = (error.details() if isinstance(error, grpc.Call) else str(error)) or type(error).__name__
    found = _ANSWERS.get(code) or next((words for find, *words in _CAUSES if re.search(find, text)), None)
    if found is None:
        return _other(error, text, card)
    if "accept the certificate" in found[0] and (own := own_certificate(site)) is not None:
        return own
    about = {
        "name": card.name, "address": card.address, "proxy": site.proxy, "clock": _shown(dt.datetime.now(dt.UTC)),
        "command": command,
        "way": f"{card.address} through the proxy {site.proxy}" if site.proxy else card.address,
        "text": text.rpartition(": ")[2][:_LONGEST],
    }  # fmt: skip
    return Cause(*(words.format(**about) for words in found))


def _other(error: Exception, text: str, card: Card) -> Cause:
    if isinstance(error, OSError):
        return Cause(f"a message of {card.name} cannot be written to the disk: {error.strerror}", "check the disk")
    if isinstance(error, grpc.RpcError):
        return Cause(f"the connection to {card.name} broke ({text[:_LONGEST]})", "wait: privsgp dials again")
    return Cause(f"{type(error).__name__}: {text[:_LONGEST]}", "read the log of this site")


def own_certificate(site: Site) -> Cause | None:
    """Return what is wrong with the certificate that this site shows, by its own clock; None if it is valid."""
    try:
        now, shown = dt.datetime.now(dt.UTC), site.certificate
    except (OSError, ValueError):  # the file is damaged: a server that runs shows the certificate that it has read
        return None
    if now > (until := shown.not_valid_after_utc):
        return Cause(
            f"the certificate of this site expired at {_shown(until)}", "run `privsgp site rotate`, and join again"
        )
    if now < (since := shown.not_valid_before_utc):
        return Cause(
            f"the certificate of this site is not valid before {_shown(since)}",
            f"set the clock here if {_shown(now)} is wrong, else run `privsgp site rotate`, and join again",
        )
    return None


def refuse_own_certificate(site: Site) -> None:
    """Refuse to join with a certificate that no other site accepts."""
    if (wrong := own_certificate(site)) is not None:
        raise Refused(*wrong)


def _shown(when: dt.datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
