"""The page of a run: one file without scripts. It fetches nothing, and nothing private is in it."""

from __future__ import annotations

import math
import shlex
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privsgp.accounting.shown import bound, guess, percent_up, small, up
from privsgp.errors import Refused
from privsgp.files import write as write_whole
from privsgp.planner import planning
from privsgp.runs import description, evaluation, views
from privsgp.runs.charts import DIAGONAL, TEMPLATES, figure, figures, forest, intervals, number, percent, table
from privsgp.runs.result import load
from privsgp.sites import signed as signatures
from privsgp.statistics.columns import PATH

if TYPE_CHECKING:
    from markupsafe import Markup

    from privsgp.runs.views import RunView

NAME = "report.html"
SOON = 20_000  # releases whose ledgers are read again in about 0.3 s
TEMPLATES.filters |= {"bound": bound, "number": number, "percent_up": percent_up, "small": small, "up": up}


def style() -> str:
    """Return the style of all pages."""
    return (resources.files("privsgp.report") / "page.css").read_text("utf-8")


def write(folder: Path, out: Path) -> None:
    """Write the page of a run or a description to `out`, whole or not at all."""
    text = _description(folder) if (folder / description.NAME).exists() else page(views.read(folder))
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
    plan = view.plan
    command = [Path(word).name if i == 0 else word for i, word in enumerate(view.identity.get("command", []))]
    if plan is not None and plan.get("asked") is None:  # plans of older releases do not say what was given
        plan = None
    additive = view.config is not None and view.config.model.name == "additive"
    return TEMPLATES.get_template("page.html").render(
        view=view,
        kind="report",
        alerts=view.alerts,
        what=view.what,
        name=view.summary["name"],
        style=style(),
        charts=figures(view),
        shapes=[forest(shape) for shape in load(view.folder).shapes()] if additive else [],
        held_out=_held_out(view.folder),
        own=view.summary.get("site") or {},
        signed=signatures.read(view.folder),
        plan=plan,
        planned=None if plan is None else planning.described(dict(plan)),
        command=shlex.join(command).replace("__main__.py", "python -m privsgp", 1),
    )  # fmt: skip


def _description(folder: Path) -> str:
    """Return the page of a private description."""
    found = description.read(folder)
    rows, head = description.rows_of(found), ["what", "value, 95 % interval"]
    return TEMPLATES.get_template("description.html").render(
        found=found, name=found["name"], kind="description", style=style(), spent=description.statement(found),
        what=f"{sum(found['records']):,} {found['unit']}s at {len(found['records'])} sites, counted once with noise",
        alerts=[("simulation, not private", "the configuration has a seed")] if found["simulation"] else [],
        guess=percent_up(guess(found["epsilon"], found["delta"])),
        columns=[
            (name, _pictures(name, one), table(head, [row[1:] for row in rows if row[0] == name]))
            for name, one in found["columns"].items()
        ],
    )  # fmt: skip


def _pictures(name: str, one: dict[str, Any]) -> list[Markup]:
    """Return the histogram of a column, survival by group, or the path of a ridge regression."""
    groups = {each["group"]: [(0.0, 1.0)] for each in one.get("estimates", ())}
    if one.get("times"):
        for each in one["estimates"]:
            time = one["times"][len(groups[each["group"]]) - 1]
            groups[each["group"]].append((time, each["value"]))
        known = {group: points for group, points in groups.items() if all(value is not None for _, value in points)}
        return [figure(f"Survival: {name}", dict(list(known.items())[:3]), "time", percent)] if known else []
    if PATH in one:
        path = [(math.log10(fit["lambda"]), fit["r2"]) for fit in one[PATH]["path"]]
        return [figure("Ridge regression", {"R² of new persons": path}, "log₁₀ λ")]
    shares = [*one.get("shares", ()), *([one["missing"] | {"group": "missing"}] if one.get("missing") else [])]
    drawn = [(each["group"], each["value"], each["low"], each["high"]) for each in shares if each["value"] is not None]
    return [intervals(f"Shares: {name}", drawn, "share", percent)] if drawn else []


def _held_out(folder: Path) -> list[tuple[Markup, list[str], list[Markup]]]:
    """Return of each private evaluation its metrics, what it spent, and its curves."""
    head = ["metric", "group", "value, 95 % interval"]
    found = evaluation.of_folder(folder)
    statements = [evaluation.statement(one) for one in found]
    if found:
        statements[-1] += evaluation.together(found)
    return [
        (table(head, [list(row) for row in evaluation.rows_of(one)]), lines, _curves(one["curves"]))
        for one, lines in zip(found, statements, strict=True)
    ]


def _curves(curves: dict[str, list[dict[str, Any]]]) -> list[Markup]:
    """Return calibration, and ROC or survival, where intervals say something."""
    bins = [
        ((one["from"] + one["to"]) / 2, one["value"])
        for one in curves.get("calibration", ())
        if one["value"] is not None
    ]
    roc = [
        (1 - one["specificity"]["value"], one["sensitivity"]["value"]) for one in curves.get("thresholds", ())
        if None not in (one["specificity"]["value"], one["sensitivity"]["value"])
    ]  # fmt: skip
    lived = [(one["time"], one["value"]) for one in curves.get("survival", ()) if one["value"] is not None]
    found = [figure("Calibration", {"model": bins, "ideal": DIAGONAL}, "predicted", percent)] if len(bins) > 1 else []
    if len(roc) > 1:
        points = [(0.0, 0.0), *sorted(roc), (1.0, 1.0)]
        found.append(figure("ROC", {"model": points, "guess": DIAGONAL}, "false positive rate", percent))
    if lived:
        found.append(figure("Survival (Kaplan–Meier)", {"observed": [(0.0, 1.0), *lived]}, "time", percent))
    return found
