"""A finished run as people see it: labelled facts, and the text of its privacy statement.

The terminal, a notebook, the model card and the report render this one value. `of` takes a summary. `read` takes a run
folder, checks its ledgers and recomputes ε. Every printed ε and δ is rounded up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from privsgp import metrics
from privsgp.accounting.shown import bound, guess, one_in, percent_up, small, span_up, up
from privsgp.accounting.statements import Statement, statements
from privsgp.engine.folder import Folder, read_metrics
from privsgp.engine.formats import Plan, Summary
from privsgp.errors import Refused
from privsgp.files import in_units, read_json
from privsgp.runs import config as configs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from privsgp.runs.config import Config

Rows = list[tuple[str, str]]
LABELS = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "f1": "F1", "auc": "AUC",
    "log_loss": "log loss", "brier": "Brier score", "calibration_error": "calibration error",
    "calibration_in_the_large": "calibration in the large", "calibration_slope": "calibration slope", "r2": "R²",
    "c_index": "C-index", "survival_brier": "Brier score, mean over times",
    "mae": "mean absolute error", "rmse": "RMSE", "worst_node_accuracy": "worst site's model", "test_loss": "test loss",
    "train_loss": "training loss", "consensus_error": "consensus error",
}  # fmt: skip


def span(values: Sequence[float]) -> str:
    """Write one number, or the smallest and the largest."""
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} … {high}"


WEAK = 10.0  # from this ε on a guess may be right 99.995 % of the time
_TEXTS = Environment(  # each line of a text is a statement, so no value may begin a new one
    loader=PackageLoader("privsgp.report"), autoescape=False, undefined=StrictUndefined, trim_blocks=True,  # noqa: S701
    lstrip_blocks=True, finalize=lambda value: " ".join(str(value).splitlines()),
)  # fmt: skip
_TEXTS.filters |= {
    "bound": bound, "one_in": one_in, "percent_up": percent_up, "small": small, "span": span,
    "span_up": span_up, "up": up,
}  # fmt: skip
_CURVES = ("test_accuracy", "mean_node_accuracy", "worst_node_accuracy", "test_loss")
_TESTED = (*_CURVES, *metrics.KEYS)  # public if the test data are
_SIMULATED = ("train_loss",)  # computed from records: docs/privacy.md, "What is not covered"


@dataclass(frozen=True)
class Site:
    """An upper bound on a site's spending. An infinite ε is no finite bound."""

    name: str
    epsilon: float
    delta: float
    budget: float | None = None
    releases: int | None = None
    by_sites: Sequence[tuple[float, float]] = ()  # ε of a person by the number of sites that hold rows of it

    @property
    def guess(self) -> float:
        """How often an observer who must say whether a record took part is right, at most."""
        return guess(self.epsilon, self.delta)


@dataclass(frozen=True)
class RunView:
    """A finished run: what it may show of itself, and what each site has spent.

    `summary` is summary.json without the metrics that have to stay at a site, and `rows` are the evaluations during the
    run. `sites` is empty for a method without noise, `elsewhere` counts the sites whose ledgers are on other machines.
    Only a run folder has `config`, `identity` (run.json) and `plan`.
    """

    folder: Path
    summary: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    sites: Sequence[Site]
    elsewhere: int = 0
    config: Config | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] | None = None

    @property
    def what(self) -> str:
        """The method, the network and the size of the run."""
        s, graph = self.summary, self.summary["graph"]
        network = {"server": "a server", "alone": "no messages"}.get(graph, f"{graph} graph")
        of_planned = f" of {s['steps_planned']:,}" if s.get("ended") else ""
        return f"{s['algorithm']}, {network}, {s['nodes']} sites, {s['steps']:,}{of_planned} steps, d = {s['dim']:,}"

    @property
    def unit(self) -> str:
        """The unit of privacy: a record, or a person."""
        return "person" if self.summary.get("person") else "record"

    @property
    def alerts(self) -> Rows:
        """Return what readers must not overlook, and why."""
        s = self.summary
        seed = "the configuration has a seed, and anyone who reads it can compute and remove the noise"
        lines = [("simulation, not private", seed)] if s["simulation"] else []
        lines += [("ended early", s["ended"])] if s.get("ended") else []
        return lines + warning_lines((s.get("site") or {}).get("warnings", []))

    @property
    def numbers(self) -> Rows:
        """Return label and value of what the run is, its metrics beside those of a guess, and what it took."""
        metrics = metric_rows(self.summary)
        return labelled("run.txt", view=self, metrics=metrics, clocked=clocked, in_units=in_units)

    @property
    def privacy(self) -> list[str]:
        """The guarantee: whose records it covers, which adversary it holds against, and what it leaves open."""
        worst = max(self.sites, key=lambda site: (site.guess, site.epsilon), default=None)
        return written("privacy.txt", view=self, worst=worst, weak=WEAK, infinity=math.inf)

    @property
    def not_covered(self) -> list[str]:
        """Return what no ε of this run covers."""
        return written("not-covered.txt", view=self)

    @property
    def facts(self) -> Rows:
        """Return label and value of everything that a terminal or a notebook shows."""
        more = {"privacy": self.privacy, "not covered": self.not_covered, "folder": [str(self.folder)]}
        return self.alerts + self.numbers + [(label, "\n".join(lines)) for label, lines in more.items() if lines]

    def curve(self, metric: str) -> list[tuple[float, float]]:
        """Return (step, value) of every evaluation that has the metric."""
        found = [(row["step"], row.get(metric)) for row in self.rows]
        return [(float(step), value) for step, value in found if value is not None and math.isfinite(value)]


def written(name: str, **values: Any) -> list[str]:  # noqa: ANN401 - whatever the template names
    """Return the lines of a text for people."""
    return [line for line in _TEXTS.get_template(name).render(values).splitlines() if line]


def labelled(name: str, **values: Any) -> Rows:  # noqa: ANN401 - whatever the template names
    """Return label and value of each line of a text; a line that begins with blanks continues the value before it."""
    rows: Rows = []
    for line in written(name, **values):
        if line.startswith("  "):
            label, value = rows.pop()
            rows.append((label, f"{value}\n{line[2:]}"))
        else:
            label, _, value = line.partition(": ")
            rows.append((label, value))
    return [(label, value) for label, value in rows if value]


def of(summary: Mapping[str, Any], folder: Path, rows: Sequence[Mapping[str, Any]] = ()) -> RunView:
    """Return the view of a run that has just ended, by its summary."""
    s, spent = summary, summary.get("epsilon_spent") or []
    names = s.get("sites") or [one["name"] for one in s.get("site", {}).get("roster", ())]
    names = names or [f"site {i}" for i in range(len(spent))]
    unknown = [None] * len(spent)
    budgets, releases = s.get("epsilon_budget") or unknown, s.get("releases") or unknown
    here = [s["site"]["node"]] if "site" in s and spent else range(len(spent))
    known = [math.inf if epsilon is None else epsilon for epsilon in spent]
    person = s.get("person") or {"curve": []}
    curve = [(sites, math.inf if epsilon is None else epsilon) for sites, epsilon in person["curve"]]
    sites = [Site(str(names[i]), known[i], s["delta"][i], budgets[i], releases[i], curve) for i in here]
    return RunView(
        folder, s, rows, sites, len(spent) - len(sites), plan=_plan(Folder(folder), simulated=s["simulation"])
    )


def read(path: Path) -> RunView:
    """Read a finished run's folder; `private/` is never opened.

    Guarantee: every ledger line was checked and every ε computed again. For a run without a seed nothing is kept that
    depends on records except through noised messages. The view keeps metrics by a list of names, and only if the test
    data are public. It keeps a plan only if that was made on public or made-up data.
    """
    folder = finished(path)
    config, summary = configs.started(folder.config), read_json(folder.summary, Summary)
    simulated, kept_back = config.seed is not None, () if config.test_is_public else _TESTED
    names = {"step", *_CURVES, "consensus_error", *(_SIMULATED if simulated else ())} - set(kept_back)
    rows = [{name: value for name, value in row.items() if name in names} for row in read_metrics(folder.metrics)]
    found = statements(folder.ledgers or path) if config.private else []
    ledgers = 1 if config.trust == "curator" else config.data.nodes  # one, if one site holds all records
    shown = summary | dict.fromkeys((*kept_back, *(() if simulated else _SIMULATED)))
    shown["simulation"] = simulated or any(one.simulation for one in found)
    sites, plan = [_stated(one) for one in found], _plan(folder, simulated=simulated)
    return RunView(
        path, shown, rows, sites, ledgers - len(sites) if config.private else 0, config, folder.identity, plan
    )


def _plan(folder: Folder, *, simulated: bool) -> dict[str, Any] | None:
    """Return the plan of a run, unless it was made on private data."""
    plan = read_json(folder.plan, Plan) if folder.plan.exists() else None
    private = plan is not None and plan["estimated_on"]["kind"] == "private" and not simulated
    return None if private else plan


def finished(path: Path) -> Folder:
    """Return the folder of a finished run; refuse any other."""
    folder = Folder(path)
    if not folder.summary.exists() or not folder.config.exists():
        there = "is not finished" if folder.config.exists() else "is no run folder"
        raise Refused(
            f"{path} {there}",
            "name the folder of a finished run; for other runs, `privsgp ledger` shows the spending",
        )
    return folder


def _stated(s: Statement) -> Site:
    """Return what a ledger says; one that was not closed may still have spent its whole budget."""
    most = s.epsilon if s.complete else max(s.epsilon, math.inf if s.budget is None else s.budget)
    return Site(s.site or f"site {s.node}", most, s.delta, s.budget, s.releases, s.by_sites)


def metric_rows(found: Mapping[str, Any]) -> Rows:
    """Return label and value of each metric on test data, beside a guess that looks at no sample.

    Those that are no better than the guess are named last.
    """
    base = found.get(metrics.BASELINE) or {}
    known = {**found, "accuracy": found.get("accuracy") or found.get("test_accuracy")}
    rows = []
    for name, label in LABELS.items():
        # a guess that knows the classes' shares is calibrated: nothing to compare
        baseline = None if name == "calibration_error" else base.get(name)
        guessed = "" if baseline is None else f" (a guess: {metrics.shown(name, baseline)})"
        again = name == "test_loss" and (known.get("log_loss") or known.get("rmse"))  # the same on another scale
        if known.get(name) is not None and not again:
            rows.append((label, metrics.shown(name, known[name]) + guessed))
    return rows + [("note", line) for line in found.get(metrics.NO_BETTER) or ()]


def warning_lines(warnings: Sequence[dict[str, Any]]) -> Rows:
    """Return what people should know of peers: the peer, what it sent, and whether this site refused it."""
    done = {True: "This site refused it", False: "This site accepted it"}
    return [(f"WARNING: {one['peer']}", f"{one['what']}. {done[one['refused']]} ({one['at']}).") for one in warnings]


def clocked(virtual_seconds: float | None, steps: int) -> bool:
    """Tell whether a virtual clock says more than the number of steps: by default a step takes a second."""
    return virtual_seconds is not None and virtual_seconds != steps
