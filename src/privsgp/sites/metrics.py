"""What a monitoring system may ask a site for, in Prometheus' text format: off unless asked for, on the address given.

Nothing of it depends on records: steps, releases paid for, messages, who is there, what was refused.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from privsgp.errors import Refused
from privsgp.sites.identity import is_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from privsgp.sites.audit import Audit
    from privsgp.sites.members import Members
    from privsgp.sites.transport import SitesTransport


def text(members: Members, transport: SitesTransport, audit: Audit) -> str:
    """Return the metrics of a site."""
    posted, taken, missed = transport.counts.tolist()
    lines = [
        *_metric("step", "gauge", "Steps and rounds of mixing that are done.", {"": members.step}),
        *_metric("rounds", "gauge", "Steps and rounds of mixing in all.", {"": members.agreement.rounds}),
        *_metric("sites_present", "gauge", "Sites that are there, this one included.", {"": members.count()}),
        *_metric("paused", "gauge", "1 while the run waits for other sites.", {"": int(members.phase == "paused")}),
        *_metric(
            "messages_total", "counter", "Messages.",
            {'{kind="posted"}': posted, '{kind="taken"}': taken, '{kind="missed"}': missed},
        ),
        *_metric(
            "peer_step", "gauge", "The step that a site was last heard of at.",
            {f'{{site="{members.agreement.roster[i].name}"}}': m.step for i, m in members.others.items()},
        ),
        *_metric(
            "refused_total", "counter", "What was refused at the border since this process began.",
            {f'{{kind="{kind}"}}': count for kind, count in audit.counts().items()},
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, meaning: str, values: dict[str, int]) -> list[str]:
    full = f"privsgp_site_{name}"
    return [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}", *(f"{full}{label} {v}" for label, v in values.items())]


@contextmanager
def served(address: str | None, made: Callable[[], str]) -> Iterator[None]:
    """Serve metrics at HOST:PORT/metrics while the block runs."""
    if address is None:
        yield
        return
    if not is_address(address):
        raise Refused(f"--metrics {address}", "write HOST:PORT, for example 127.0.0.1:9464")
    host, _, port = address.rpartition(":")

    class Handler(BaseHTTPRequestHandler):
        timeout = 5.0

        def do_GET(self) -> None:
            body = made().encode()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            if self.path == "/metrics":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing of who asked."""

    try:
        server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
    except OSError as error:
        raise Refused(f"--metrics {address}: {error.strerror}", "choose another port") from error
    server.daemon_threads = False  # what is being answered is answered to its end
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
