"""The view of a run for a site's staff: rows for terminal and page, the page, and answers for a probe."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from privsgp.accounting.shown import down
from privsgp.files import in_units
from privsgp.report.page import style
from privsgp.runs.charts import TEMPLATES
from privsgp.runs.views import labelled, warning_lines
from privsgp.sites import status
from privsgp.sites.web import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Site

_FRESH = 5.0  # seconds: an older status.json is of a process that no longer runs
_ENDED = ("finished", "left")
_JSON = "application/json"
_STOPPED = [("Not running.", "Run privsgp join with the same options: it continues, and charges nothing twice.")]


def rows(agreement: Agreement, node: int, values: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of `privsgp status`: sites, links, releases, budget, refusals and warnings."""
    found = labelled(
        "status.txt", a=agreement, node=node, v=values, age=_age(values), fresh=_FRESH, ended=_ENDED,
        in_units=in_units, down=down,
    )  # fmt: skip
    return found + warning_lines(values.get("warnings", []))


def stopped(values: dict[str, Any]) -> bool:
    """Return whether no process takes part, although the run has not ended at this site."""
    return bool(_age(values) >= _FRESH and values["own"]["phase"] not in _ENDED)


def _age(values: dict[str, Any]) -> float:
    """Return how far the clock is from that of status.json: a clock that was put back shows no future as fresh."""
    return abs(time.time() - float(values["at"]))


def pages(agreement: Agreement, site: Site, folder: Path, query: str = "") -> Mapping[str, Callable[[], Answer]]:
    """Return the pages of `privsgp status --serve`: for people, as JSON, and for probes.

    /healthz has status 503 if no process takes part, /readyz also while a link or the site's certificate fails.
    """
    node = agreement.node(site)

    def read() -> dict[str, Any]:
        return status.read(agreement, site, folder)

    def page() -> Answer:
        values = read()
        found = TEMPLATES.get_template("site.html").render(
            name=agreement.name, style=style(), rows=rows(agreement, node, values), query=query,
            kind="status of a site", what=f"{values['own']['name']}, run {values['run'][:8]}",
            alerts=_STOPPED if stopped(values) else [],
        )  # fmt: skip
        return Answer(found, "text/html; charset=utf-8")

    def probe(*, ready: bool) -> Answer:
        values = read()
        failing = [one["error"] for one in (values["own"], *values["links"]) if one["error"] is not None]
        why = ["no process takes part"] if stopped(values) else failing if ready else []
        return Answer("\n".join(why or ["ok"]) + "\n", status=503 if why else 200)

    return {
        "/": page, "/status.json": lambda: Answer(json.dumps(read()), _JSON),
        "/healthz": lambda: probe(ready=False), "/readyz": lambda: probe(ready=True),
    }  # fmt: skip
