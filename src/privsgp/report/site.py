"""The view of a run for a site's staff: rows for terminal and page, the page, and answers for a probe."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from privsgp.accounting.shown import down, up
from privsgp.files import in_units
from privsgp.report.page import TEMPLATES, style
from privsgp.runs.views import warning_lines
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
    age, own = _age(values), values["own"]
    running = "running" if age < _FRESH else f"not running: last heard {age:.0f} s ago"
    found = [
        (
            f"{own['name']} (this site)",
            f"{own['phase']}, step {own['step']} of {values['rounds']}; {running}{_failing(own)}",
        )
    ]
    found += [
        (name, f"{one['phase']}, step {one['step']}; {_presence(one)}{_failing(one)}")
        for name, one in values["sites"].items()
    ]
    found += [(f"{one['source']} → {one['target']}", _last_message(one)) for one in values["links"]]
    if (remaining := values["seconds_left"]) is not None and own["phase"] not in _ENDED:
        found.append(("time left", f"about {remaining / 60:.0f} min, if steps take as long as so far"))
    found.append(("releases", _releases(agreement, node, values)))
    found += [("budget book", line) for line in _spending(values["budget_book"])]
    found.append(("refused", ", ".join(f"{count} × {kind}" for kind, count in values["refused"].items()) or "nothing"))
    found += [("last refused", f"{one['at']}  {one['peer']}: {one['what']}") for one in values["newest"]]
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


def _presence(one: dict[str, Any]) -> str:
    """Say whether a site speaks to this one: "there" is said of a site that was heard directly, and lately."""
    signed = "" if one["signed"] else ", has not signed"
    if one["there"] or one["phase"] == "left":
        return ("there" if one["there"] else "has left") + signed
    if one["relay"] is not None and one["reported_by"] is not None:
        return f"speaks through the relay {one['relay']} (reported alive by {one['reported_by']}){signed}"
    silent = "silent so far" if (seconds := one["silent_seconds"]) is None else f"silent for {seconds:.0f} s"
    reported = "" if one["reported_by"] is None else f" (reported alive by {one['reported_by']})"
    return silent + reported + signed


def _failing(one: dict[str, Any]) -> str:
    return "" if one["error"] is None else f"\n{one['error']}\n→ {one['remedy']}"


def _last_message(one: dict[str, Any]) -> str:
    if one["step"] is None:
        return "no message yet"
    when = "before this process" if (seconds := one["seconds_ago"]) is None else f"{seconds:.0f} s ago"
    return f"step {one['step']}, {when}; {in_units(one['bytes'])}"


def _releases(agreement: Agreement, node: int, values: dict[str, Any]) -> str:
    """Say what was sent, what was reserved in advance, and what the whole run may cost."""
    reserved = f", {values['reserved']} more are reserved" if values["reserved"] > 0 else ""
    epsilon = agreement.epsilon[node]
    bound = "without a budget" if epsilon is None else f"ε ≤ {up(epsilon)} for all{agreement.if_honest}"
    return f"{values['releases']} of {agreement.steps} sent{reserved}; {bound}"


def _spending(book: dict[str, float | None] | None) -> list[str]:
    """Say what the runs on these records may spend in all, and what policy.toml leaves."""
    if book is None:
        return ["it has no records of this run"]
    found = []
    for name, key in (("ε", "epsilon"), ("δ", "delta")):
        spent, total = book[f"{key}_spent"], book[f"{key}_total"]
        text = "no finite bound" if spent is None else f"at most {up(spent)}"
        remaining = "policy.toml sets no limit"
        if total is not None:
            remaining = f"{down(max(total - spent, 0.0)) if spent is not None else '0'} left of {up(total)}"
        found.append(f"{name} over all runs on these records: {text}; {remaining}")
    return found
