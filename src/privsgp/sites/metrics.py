"""Metrics for a monitoring system, in Prometheus' text format, on a given address; off by default.

Nothing of it depends on records: steps, links and their messages, sites, what was refused.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from privsgp.accounting.shown import up
from privsgp.errors import Refused
from privsgp.sites.identity import is_address
from privsgp.sites.status import state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from privsgp.sites.run import Network


def text(network: Network, spent: float | None = None) -> str:
    """Return the metrics of a site; `spent` is its ε so far."""
    members, seen = network.members, state(network)
    posted, taken, missed = network.transport.counts.tolist()
    sites = {f'{{site="{name}"}}': one for name, one in seen["sites"].items()}
    links = {f'{{source="{one["source"]}",target="{one["target"]}"}}': one for one in seen["links"]}
    failing = {label: one["error"] is not None for label, one in links.items()}
    budget = network.agreement.epsilon[network.node]
    epsilon = {"spent": spent, "budget": budget}
    lines = [
        *_metric("epsilon", "gauge", "ε of this site, rounded up: spent so far, and agreed on.",
            {f'{{kind="{kind}"}}': float(up(value)) for kind, value in epsilon.items() if value is not None},
        ),
        *_metric("step", "gauge", "Steps and rounds of mixing that are done.", {"": members.step}),
        *_metric("rounds", "gauge", "Steps and rounds of mixing in all.", {"": members.agreement.rounds}),
        *_metric("sites_present", "gauge", "Sites that are there, this one included.", {"": members.count()}),
        *_metric("paused", "gauge", "1 while the run waits for other sites.", {"": int(members.phase == "paused")}),
        *_metric(
            "messages_total", "counter", "Messages.",
            {'{kind="posted"}': posted, '{kind="taken"}': taken, '{kind="missed"}': missed},
        ),
        *_metric("peer_step", "gauge", "The newest step known of a site.", _column(sites, "step")),
        *_metric("peer_there", "gauge", "1 if a site has spoken to this one lately.", _column(sites, "there")),
        *_metric("link_step", "gauge", "The step of the last message over a link.", _column(links, "step")),
        *_metric("link_age_seconds", "gauge", "Seconds since that message.", _column(links, "seconds_ago")),
        *_metric("link_bytes_total", "counter", "Bytes of messages over a link.", _column(links, "bytes")),
        *_metric("link_failing", "gauge", "1 while a link fails.", failing),
        *_metric("refused_total", "counter", "What was refused at the border since this process began.",
            {f'{{kind="{kind}"}}': count for kind, count in seen["refused"].items()},
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _column(rows: dict[str, dict[str, Any]], key: str) -> dict[str, float]:
    return {label: row[key] for label, row in rows.items() if row[key] is not None}


def _metric(name: str, kind: str, meaning: str, values: Mapping[str, float]) -> list[str]:
    full = f"privsgp_site_{name}"
    shown = [f"{full}{label} {value + 0}" for label, value in values.items()]  # True is 1
    return [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}", *shown]


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
            """Log no requests."""

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
