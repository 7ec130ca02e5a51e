"""The page of a run: one file without scripts. It fetches nothing, and nothing private is in it."""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from privsgp.accounting.shown import bound, percent_up, small, up
from privsgp.errors import Refused
from privsgp.files import write as write_whole
from privsgp.planner import settle as planning
from privsgp.runs import evaluation, views
from privsgp.runs.charts import figures, forest, number, table
from privsgp.runs.result import load
from privsgp.sites import signed as signatures

if TYPE_CHECKING:
    from markupsafe import Markup

    from privsgp.runs.views import RunView
    from privsgp.sites.signed import Signed

NAME = "report.html"
SOON = 20_000  # releases whose ledgers are read again in about 0.3 s
_CLASSES = 20  # of a confusion that a page has room for
TEMPLATES = Environment(
    loader=PackageLoader("privsgp.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True, keep_trailing_newline=True,
)  # fmt: skip


def style() -> str:
    """Return the style of all pages."""
    return (resources.files("privsgp.report") / "page.css").read_text("utf-8")


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
    signed, plan = signatures.read(view.folder), view.plan
    command = [Path(word).name if i == 0 else word for i, word in enumerate(view.identity.get("command", []))]
    if plan is not None and plan.get("asked") is None:  # plans of older releases do not say what was given
        plan = None
    additive = view.config is not None and view.config.model.name == "additive"
    return TEMPLATES.get_template("page.html").render(
        view=view,
        name=view.summary["name"],
        style=style(),
        charts=figures(view),
        shapes=[forest(shape) for shape in load(view.folder).shapes()] if additive else [],
        confusion=_confusion(view.summary.get("confusion") or []),
        held_out=_held_out(view.folder),
        sites=_sites(view),
        signed=signed,
        all_signed=signed is not None and all(signed.signed),
        whose=(view.summary.get("site") or {}).get("name"),
        agreed=None if signed is None else _agreed(view, signed),
        plan=plan,
        planned=None if plan is None else planning.described(dict(plan)),
        made=view.identity.get("versions", {}),
        command=shlex.join(command).replace("__main__.py", "python -m privsgp", 1),
        config="" if view.config is None else view.config.toml(),
    )  # fmt: skip


def _confusion(counts: list[list[int]]) -> Markup | None:
    if not 0 < len(counts) <= _CLASSES:
        return None
    head = ["true class", *(f"said {c}" for c in range(len(counts)))]
    return table(head, [[str(c), *map(str, row)] for c, row in enumerate(counts)])


def _held_out(folder: Path) -> list[tuple[Markup, list[str]]]:
    """Return of each private evaluation its metrics, and what it spent."""
    head = ["metric", "group", "value, 95 % interval"]
    found = evaluation.of_folder(folder)
    return [(table(head, [list(row) for row in evaluation.rows_of(one)]), evaluation.statement(one)) for one in found]


def _sites(view: RunView) -> Markup:
    head = ["site", "ε spent", "ε budget", "δ", "a guess is right at most", "releases"]
    rows = [
        [
            site.name, bound(site.epsilon), "–" if site.budget is None else up(site.budget), small(site.delta),
            percent_up(site.guess), "–" if site.releases is None else f"{site.releases:,}",
        ]
        for site in view.sites
    ]  # fmt: skip
    return table(head, rows)


def _agreed(view: RunView, signed: Signed) -> Markup:
    site = view.summary.get("site") or {}
    newest = [one.get("newest") for one in site.get("roster", [])] or [None] * len(signed.signed)
    head = ["site", "fingerprint", "signature", "records", "ε", "δ", "σ", "last message to this site"]
    rows = []
    study = signed.study
    for i, (card, step) in enumerate(zip(study.roster, newest, strict=False)):
        heard = ("none" if step is None else f"step {step:,}") + ("; left for good" if signed.left[i] else "")
        epsilon = study.epsilon[i]
        rows.append([
            card.name, card.fingerprint, "right" if signed.signed[i] else "missing or wrong", f"{study.samples[i]:,}",
            "–" if epsilon is None else up(epsilon), up(study.delta[i]), number(study.sigma[i]),
            "this site" if i == site.get("node") else heard,
        ])  # fmt: skip
    return table(head, rows)
