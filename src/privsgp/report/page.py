"""The page of a run: one file without scripts. It fetches nothing, and nothing private is in it."""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from privsgp.accounting.shown import percent_up, small, up
from privsgp.errors import Refused
from privsgp.files import in_units
from privsgp.files import write as write_whole
from privsgp.graph import picture
from privsgp.planner import settle as planning
from privsgp.report import words
from privsgp.runs import views
from privsgp.runs.charts import number, on_test_data, over_steps, percent, table
from privsgp.runs.resolve import make_graph
from privsgp.sites import signed as signatures

if TYPE_CHECKING:
    from markupsafe import Markup

    from privsgp.runs.views import RunView
    from privsgp.sites.signed import Signatory, Signed

NAME = "report.html"
SOON = 20_000  # releases whose ledgers are read again in about 0.3 s
_NODES = 128  # above this a circle shows nothing
_CLASSES = 20  # of a confusion that a page has room for
TEMPLATES = Environment(
    loader=PackageLoader("privsgp.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True, keep_trailing_newline=True,
)  # fmt: skip


def write(folder: Path, out: Path) -> None:
    """Write the page of a run to `out`, whole or not at all."""
    text = page(views.read(folder))
    try:
        write_whole(out, text)
    except OSError as error:
        raise Refused(
            f"cannot write the report {out}: {error.strerror}", "choose another file with {out}", out=None
        ) from error


def leave(folder: Path, summary: dict[str, Any]) -> None:
    """Write a finished run's page into its folder, once, and only if that takes no longer than a moment."""
    ledgers = 1 if "site" in summary else summary["nodes"]
    if ledgers * summary["steps"] <= SOON and not (folder / NAME).exists():
        write(folder, folder / NAME)


def page(view: RunView) -> str:
    """Return the page; the same folder gives the same bytes.

    Guarantee: as `views.read`: of a run without a seed the page shows nothing that its noised messages did not tell.
    Assumes: test data are public.
    """
    signed = signatures.read(view.folder)
    return TEMPLATES.get_template("page.html").render(
        view=view,
        name=view.summary["name"],
        style=(resources.files("privsgp.report") / "page.css").read_text("utf-8"),
        table=table,
        banners=_banners(view),
        figures=_figures(view),
        tested=[chart.figure() for chart in on_test_data(view)],
        confusion=_confusion(view.summary.get("confusion") or []),
        trained=[chart.figure() for chart in over_steps(view)],
        paragraphs=words.paragraphs(view),
        sites=_sites(view) if view.sites else None,
        trust=_trust(view) if view.if_honest else None,
        signed=signed,
        whose=(view.summary.get("site") or {}).get("name"),
        agreed=None if signed is None else _agreed(view, signed),
        network=_network(view, agreed=signed is not None),
        plan=_plan(view),
        **_repeat(view),
    )


def _banners(view: RunView) -> list[tuple[str, str]]:
    """Return what must not be overlooked, and why."""
    s = view.summary
    seed = "The configuration has a seed, so anyone can compute the noise again."
    banners = [("Simulation, not private.", seed)] if s["simulation"] else []
    banners += [("Ended early.", s["ended"])] if s.get("ended") else []
    return banners + [(f"Warning: {peer}.", text) for peer, text in view.warnings]


def _figures(view: RunView) -> list[tuple[str, str]]:
    """Return the numbers that readers ask for first, with their names."""
    s = view.summary
    cells = [(value, f"{label}: {view.model}") for label, value, _ in view.metrics if label in ("accuracy", "R²")]
    if (worst := s.get("worst_node_accuracy")) is not None:
        cells.append((percent(worst), "worst site's own model"))
    certified = "certified, for each record" + (", if it had no seed" if view.sites and s["simulation"] else "")
    cells.append((view.bound.replace(" = ", "\u00a0=\u00a0"), certified))
    cells.append((views.duration(s), "time"))
    cells.append((in_units(s["bytes_sent"]), "sent by this site" if "site" in s else "sent by all sites"))
    return cells


def _confusion(counts: list[list[int]]) -> Markup | None:
    if not 0 < len(counts) <= _CLASSES:
        return None
    head = ["true class", *(f"said {c}" for c in range(len(counts)))]
    return table(head, [[str(c), *map(str, row)] for c, row in enumerate(counts)])


def _sites(view: RunView) -> Markup:
    head = ["site", "ε spent", "ε budget", "δ", "a guess is right at most", "releases"]
    rows = [
        [
            site.name, site.spent, "–" if site.budget is None else up(site.budget), small(site.delta),
            percent_up(site.guess), "–" if site.releases is None else f"{site.releases:,}",
        ]
        for site in view.sites
    ]  # fmt: skip
    return table(head, rows)


def _trust(view: RunView) -> Markup:
    rows = [[str(h), "no finite bound" if e is None else up(e)] for h, e in view.if_honest.items()]
    return table(["honest sites", "ε of the site that has spent most"], rows)


def _agreed(view: RunView, signed: Signed) -> Markup:
    site = view.summary.get("site") or {}
    newest = [one.get("newest") for one in site.get("roster", [])] or [None] * len(signed.signatories)
    head = ["site", "fingerprint", "signature", "records", "ε", "δ", "σ", "last message to this site"]
    rows = [
        [
            one.name, one.fingerprint, "right" if one.signed else "missing or wrong", f"{one.samples:,}",
            "–" if one.epsilon is None else up(one.epsilon), up(one.delta), number(one.sigma),
            "this site" if i == site.get("node") else _heard(one, step),
        ]
        for i, (one, step) in enumerate(zip(signed.signatories, newest, strict=False))
    ]  # fmt: skip
    return table(head, rows)


def _heard(one: Signatory, step: int | None) -> str:
    heard = "none" if step is None else f"step {step:,}"
    return f"{heard}; left for good" if one.left else heard


def _network(view: RunView, *, agreed: bool) -> dict[str, Any] | None:
    """Return the graph's first steps in a picture, and what went wrong on a simulated network."""
    if view.config is None or view.summary["graph"] in ("server", "alone"):
        return None
    graph = make_graph(view.config)
    steps = range(picture.first_steps(graph))
    which = "Every step" if graph.period == 1 else f"The first {len(steps)} steps together"
    repeats = "the graph never repeats" if graph.period is None else f"it repeats after {graph.period}"
    said = f"{which}; {repeats}." + (" This is the graph that was agreed on." if agreed else "")
    if faults := view.summary.get("faults"):
        said += f" Simulated faults: {', '.join(f'{key} {value}' for key, value in faults.items())}."
    return {"said": said, "drawn": picture.circle(graph, steps) if graph.nodes <= _NODES else None}


_COLUMNS = {"step_size": "step size", "sigma": "σ", "noise_in_average": "noise in the average", "score": "score"}


def _plan(view: RunView) -> dict[str, Any] | None:
    """Return what the planner chose and from which methods."""
    plan = view.plan
    if plan is None or plan.get("asked") is None:  # plans of older releases do not say what was given
        return None
    rows = [
        [m["method"], number(m["steps"]), *("–" if m[key] is None else number(m[key]) for key in _COLUMNS)]
        for m in plan["methods"]
    ]
    methods = table(["method", "steps", *_COLUMNS.values()], rows)
    warnings = [line.replace("node", "site") for line in plan["warnings"]]
    return {"said": f"Planned: {planning.described(dict(plan))}.", "methods": methods, "warnings": warnings}


def _repeat(view: RunView) -> dict[str, str]:
    """Return the versions, the command and the configuration that the run was made with."""
    made = view.identity.get("versions", {})
    versions = ", ".join(f"{name} {made.get(name, 'unknown')}" for name in ("privsgp", "torch", "python"))
    command = [Path(word).name if i == 0 else word for i, word in enumerate(view.identity.get("command", []))]
    run = str(view.identity.get("run", ""))[:8]
    return {
        "made": f"Run {run}, started {view.identity.get('started', '')}, with {versions}.",
        "command": shlex.join(command).replace("__main__.py", "python -m privsgp", 1),
        "config": "" if view.config is None else view.config.toml(),
    }
