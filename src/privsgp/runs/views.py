"""A finished run as people see it. The terminal, a notebook, the model card and the report render this one value.

`of` takes a summary. `read` takes a run folder, checks its ledgers and recomputes ε. Both round ε and δ up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privsgp import metrics
from privsgp.accounting.shown import guess, span_up, up
from privsgp.accounting.statements import statements
from privsgp.engine.folder import Folder, read_metrics
from privsgp.engine.formats import Plan, Summary
from privsgp.errors import Refused
from privsgp.files import in_units, read_json
from privsgp.runs import config as configs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from privsgp.accounting.statements import Statement
    from privsgp.runs.config import Config

Rows = list[tuple[str, str]]
LABELS = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "f1": "F1", "auc": "AUC",
    "log_loss": "log loss", "calibration_error": "calibration error", "r2": "R²", "mae": "mean absolute error",
    "rmse": "RMSE",
}  # fmt: skip
AGAINST = {
    "per-node": "anyone who reads every message of a site and works together with all other sites",
    "secure aggregation": "anyone who sees only the sums of all sites' messages",
    "curator": "everybody except the site that holds all records",
    "honest sites": "anyone who works together with fewer dishonest sites than the run assumes",
}
LIMITS = (  # what no ε covers
    "Several records of one person add up. The guarantee is for each record by itself.",
    "Metrics are on public test data. No ε covers them.",
    "Another run on these records, from this model or not, adds to what was spent, unless it continued the ledgers.",
    "If people chose settings by looking at results on these records, that cost is not counted.",
)
_CURVES = ("test_accuracy", "mean_node_accuracy", "worst_node_accuracy", "test_loss")
_TESTED = (*_CURVES, *metrics.KEYS)  # public if the test data are
_SIMULATED = ("train_loss",)  # computed from records: docs/privacy.md, Artefacts
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Site:
    """An upper bound on a site's spending. ε, δ and the budget are rounded up. An infinite ε is no finite bound."""

    name: str
    epsilon: float
    delta: float
    budget: float | None = None
    releases: int | None = None

    @property
    def spent(self) -> str:
        """ε in words."""
        return up(self.epsilon) if math.isfinite(self.epsilon) else "no finite bound"

    @property
    def allowed(self) -> str:
        """The budget, to be written behind ε."""
        return "" if self.budget is None else f" of {up(self.budget)}"

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
    def model(self) -> str:
        """Which model the metrics are about, and what public pre-training it rests on."""
        alone = self.summary["graph"] == "alone" and self.summary["nodes"] > 1
        whose = "each site's own; metrics are means" if alone else "average of the sites' models"
        whose = "this site's own" if "site" in self.summary else whose
        rests_on = self.summary.get("pretraining")
        return f"{whose}; {rests_on}" if rests_on else whose

    @property
    def bound(self) -> str:
        """(ε, δ) of all sites, or that there is none."""
        if not self.sites:
            return "none: this method adds no noise"
        if any(math.isinf(site.epsilon) for site in self.sites):
            return "no finite bound is known for at least one site"
        return f"ε = {span_up([s.epsilon for s in self.sites])}, δ = {span_up([s.delta for s in self.sites])}"

    @property
    def promise(self) -> list[str]:
        """The guarantee: whose records it covers, and which adversary it holds against."""
        s, shared, start = self.summary, self.summary.get("pairwise"), self.summary.get("started_from")
        if not self.sites or "ε" not in self.bound:
            return [self.bound]
        whose = "this site" if self.elsewhere else "a site"
        said = [f"{self.bound} for each record of {whose} ({s['relation']}, certified)"]
        said += [f"against {AGAINST.get(s['trust'], s['trust'])}"]
        if s.get("epsilon_nominal") is not None:
            said += [f"nominal ε = {span_up(s['epsilon_nominal'])} by the published formula, which guarantees nothing"]
        if shared:
            said += [f"only if {shared['honest']} of {s['nodes']} sites are honest; {self._if_others_are()}"]
        if start is not None:
            counted = "" if start["counted"] else "not "
            said += [f"started from the model of run {start['run'][:8]}; what that spent is {counted}counted here"]
        return said + (["simulation, not private: the configuration has a seed"] if s["simulation"] else [])

    def _if_others_are(self) -> str:
        alone, everybody = (self.if_honest.get(h) for h in (1, self.summary["nodes"]))
        return f"if all are, {_bound(everybody)}; if only the site itself is, {_bound(alone)}"

    @property
    def if_honest(self) -> dict[int, float | None]:
        """Return ε by the number of honest sites; None is no finite bound. Empty if sites share no noise."""
        return {int(h): epsilon for h, epsilon in (self.summary.get("pairwise") or {}).get("curve", ())}

    @property
    def metrics(self) -> list[tuple[str, str, str]]:
        """Return label, value, and the value of a guess that looks at no sample, of each metric on test data."""
        return metric_rows(self.summary)

    @property
    def notes(self) -> Sequence[str]:
        """Metrics that are no better than a guess."""
        return self.summary.get(metrics.DULL) or ()

    @property
    def warnings(self) -> Rows:
        """Peers that sent outlying updates, and what this site did about it."""
        return warning_lines((self.summary.get("site") or {}).get("warnings", []))

    @property
    def member(self) -> list[str]:
        """Describe the model of one site of a run between sites; nothing for other runs."""
        return site_lines(self.summary) if "site" in self.summary else []

    @property
    def facts(self) -> Rows:
        """Return label and value of everything that a terminal or a notebook shows."""
        s = self.summary
        named = s.get("sites") or "site" in s
        sent = f"{in_units(s['bytes_sent'])} by {'this site' if 'site' in s else 'all sites'}"
        rows = [
            ("run", self.what),
            ("ended early", s.get("ended")),
            ("model", self.model),
            *((label, with_guess(value, base)) for label, value, base in self.metrics),
            ("worst site's model", _percent(s.get("worst_node_accuracy"))),
            ("test loss", None if s.get("log_loss") else _plain(s.get("test_loss"))),
            ("training loss", _plain(s.get("train_loss"))),
            ("consensus error", _plain(s.get("consensus_error"))),
            ("privacy", "\n".join(self.promise)),
            ("sites", ", ".join(f"{one.name} ε = {one.spent}{one.allowed}" for one in self.sites) if named else None),
            ("noise σ", span(s["sigma"])),
            ("this site's model", "\n".join(self.member)),
            *((f"WARNING: {peer}", text) for peer, text in self.warnings),
            ("messages", _messages(s["site"]) if "site" in s else None),
            ("time", duration(s)),
            ("sent", sent),
            ("folder", str(self.folder)),
        ]
        return [(label, value) for label, value in rows if value]

    def curve(self, metric: str) -> list[tuple[float, float]]:
        """Return (step, value) of every evaluation that has the metric."""
        found = [(row["step"], row.get(metric)) for row in self.rows]
        return [(float(step), value) for step, value in found if value is not None and math.isfinite(value)]


def of(summary: Mapping[str, Any], folder: Path, rows: Sequence[Mapping[str, Any]] = ()) -> RunView:
    """Return the view of a run that has just ended, by its summary."""
    s, spent, budgets = summary, summary.get("epsilon_spent") or [], summary.get("epsilon_budget")
    here = [s["site"]["node"]] if "site" in s and spent else range(len(spent))
    sites = [
        _site(
            _name(s, i), math.inf if spent[i] is None else spent[i], s["delta"][i], budgets and budgets[i],
            (s.get("releases") or [None] * len(spent))[i],
        )
        for i in here
    ]  # fmt: skip
    return RunView(folder, s, rows, sites, len(spent) - len(sites))


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
    shown = summary | dict.fromkeys((*kept_back, *(() if simulated else _SIMULATED)))
    shown["simulation"] = simulated or any(one.simulation for one in found)
    plan = read_json(folder.plan, Plan) if folder.plan.exists() else None
    if plan is not None and plan["estimated_on"]["kind"] == "private" and not simulated:
        plan = None
    return RunView(
        path, shown, rows, [_stated(one) for one in found], _ledgers(config) - len(found) if config.private else 0,
        config, folder.identity, plan,
    )  # fmt: skip


def finished(path: Path) -> Folder:
    """Return the folder of a run that came to its end; refuse any other."""
    folder = Folder(path)
    if not folder.summary.exists() or not folder.config.exists():
        there = "is not finished" if folder.config.exists() else "is no run folder"
        raise Refused(
            f"{path} {there}",
            "name the folder of a run that came to its end; `privsgp ledger` shows what others have spent",
        )
    return folder


def _ledgers(config: Config) -> int:
    """Count the ledgers of a run: one per site, or one if one site holds all records."""
    return 1 if config.trust == "curator" else config.data.nodes


def _site(name: str, epsilon: float, delta: float, budget: float | None, releases: int | None) -> Site:
    return Site(name, float(up(epsilon)), float(up(delta)), None if budget is None else float(up(budget)), releases)


def _stated(s: Statement) -> Site:
    """Return what a ledger says; one that was not closed may still have spent its whole budget."""
    most = s.epsilon if s.complete else max(s.epsilon, math.inf if s.budget is None else s.budget)
    return _site(s.site or f"site {s.node}", most, s.delta, s.budget, s.releases)


def _name(s: Mapping[str, Any], i: int) -> str:
    names = s.get("sites") or [one["name"] for one in s.get("site", {}).get("roster", ())]
    return str(names[i]) if i < len(names) else f"site {i}"


def _bound(epsilon: float | None) -> str:
    return "no finite bound holds" if epsilon is None else f"ε = {up(epsilon)}"


def metric_rows(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return label, value and the guess's value of each metric on test data, the user's own ones last."""
    base, own = dict(found.get(metrics.BASELINE) or {}), found.get(metrics.OWN) or {}
    base.pop("calibration_error", None)  # a guess that knows the classes' shares is calibrated
    known = dict(found) if found.get("accuracy") is not None else {**found, "accuracy": found.get("test_accuracy")}
    rows = [
        (label, metrics.shown(name, known[name]), metrics.shown(name, base.get(name)))
        for name, label in LABELS.items()
        if known.get(name) is not None
    ]
    return rows + [(name, metrics.shown("", value), "–") for name, value in own.items()]


def with_guess(value: str, base: str) -> str:
    """Write a metric with what a guess gets."""
    return value if base == "–" else f"{value} (a guess: {base})"


def site_lines(s: Mapping[str, Any]) -> list[str]:
    """Describe a site's model, how far others' were from it at the end, and the weight that left with sites."""
    own, n = s["site"], s["nodes"]
    lines = [f"The norm of this site's model is {own['model_norm']:.4g}."] if "model_norm" in own else []
    if distances := [
        f"{one['name']} {one['distance']:.2%}" for one in own["roster"] if one.get("distance") is not None
    ]:
        lines.append(f"The others' last models differ from it by: {', '.join(distances)}.")
    held, left = own.get("weight_of_all"), own.get("messages", {}).get("left", [])
    if held is not None and abs(held - n) > _ROUNDING * n:
        gone = f" {', '.join(left)} left with the rest." if held < n and left else ""
        far = f"{(n - len(left)) / held:.3g} times as far as planned"
        lines.append(
            f"The sites hold the weight {held:.3g} of {n}.{gone} Each step and its noise move the model {far}."
        )
    return lines


def warning_lines(warnings: Sequence[dict[str, Any]]) -> Rows:
    """Return what people should know of peers: the peer, what it sent, and whether this site refused it."""
    done = {True: "This site refused it", False: "This site took it"}
    return [(one["peer"], f"{one['what']}. {done[one['refused']]} ({one['at']}).") for one in warnings]


def _messages(own: Mapping[str, Any]) -> str:
    m, refused = own["messages"], ", ".join(f"{count} × {kind}" for kind, count in own["refused"].items())
    return f"{m['posted']} sent, {m['taken']} taken, {m['missed']} missed at a deadline; refused: {refused or 'none'}"


def span(values: Sequence[float]) -> str:
    """Write one number, or the smallest and the largest."""
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} … {high}"


def duration(s: Mapping[str, Any]) -> str:
    """Write how long a run took, by its virtual clock too if a step takes anything but a second there."""
    clock = f"; {s['virtual_seconds']:.4g} virtual s" if clocked(s["virtual_seconds"], s["steps"]) else ""
    return f"{s['seconds']:.1f} s{clock}"


def clocked(virtual_seconds: float | None, steps: int) -> bool:
    """Tell whether a virtual clock says more than the number of steps: by default a step takes a second."""
    return virtual_seconds is not None and virtual_seconds != steps


def _percent(value: float | None) -> str | None:
    return None if value is None else metrics.shown("accuracy", value)


def _plain(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"
