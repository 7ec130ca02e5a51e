"""Read-only pages of a site over HTTP: GET of fixed paths, and nothing of a request but its path is looked at.

Without a token only this machine may ask. A page of the internet that runs in a browser here asks under another name
of host, so such requests are refused.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlsplit

from privsgp.errors import Refused
from privsgp.sites.identity import is_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"


class Answer(NamedTuple):
    """The answer to a request."""

    text: str
    kind: str = "text/plain; charset=utf-8"
    status: int = 200


def is_loopback(address: str) -> bool:
    """Tell whether HOST:PORT is of this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@contextlib.contextmanager
def served(address: str, pages: Mapping[str, Callable[[], Answer]], token: str | None = None) -> Iterator[None]:
    """Serve pages by their paths at HOST:PORT while the block runs.

    Guarantee: with a token, every request without it gets status 401. Without one, a request under another name than
    that of this machine gets status 403. No request delays the end of the block.
    """
    if not is_address(address):
        raise Refused(f"--serve {address} is no address", "write HOST:PORT, for example --serve 127.0.0.1:9464")
    host, _, port = address.rpartition(":")

    class Handler(BaseHTTPRequestHandler):
        timeout = 5.0

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            found = self._refused(asked.query) or _answered(pages.get(asked.path))
            body = found.text.encode()
            self.send_response(found.status)
            for name, value in (
                ("Content-Type", found.kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store"),
                ("Content-Security-Policy", _POLICY), ("X-Content-Type-Options", "nosniff"),
                ("Referrer-Policy", "no-referrer"), ("Cross-Origin-Resource-Policy", "same-origin"),
            ):  # fmt: skip
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def _refused(self, query: str) -> Answer | None:
            if token is None:
                is_here = is_loopback(f"{self.headers.get('Host', '').rpartition(':')[0]}:0")
                return None if is_here else Answer(f"this page is at http://{address}/ only\n", status=403)
            shown = self.headers.get("Authorization", "").removeprefix("Bearer ")
            shown = shown or next(iter(parse_qs(query).get("token", [])), "")
            if hmac.compare_digest(shown.encode(), token.encode()):
                return None
            return Answer("add ?token=… from the terminal, or the header Authorization: Bearer …\n", status=401)

        def log_message(self, *_: object) -> None:
            """Log no requests."""

    try:
        server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
    except OSError as error:
        raise Refused(f"--serve {address}: {error.strerror}", "choose another port") from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _answered(page: Callable[[], Answer] | None) -> Answer:
    """Return what a page answers, or why the run's files do not give one."""
    try:
        return Answer("", status=404) if page is None else page()
    except Refused as refused:
        return Answer(f"{refused}\n", status=503)
