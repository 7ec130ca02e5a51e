"""A finished run as people see it: labelled facts, and the text of its privacy statement.

The terminal, a notebook, the model card and the report render this one value. `of` takes a summary. `read` takes a run
folder, checks its ledgers and recomputes ε. Every printed ε and δ is rounded up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
AGAINST = {
    "per-node": "anyone who reads every message and model of a site, and works together with all other sites",
    "secure aggregation": "anyone who sees only the sums of all sites' messages, and no site's noise",
    "curator": "everybody except the site that holds all records and has to be trusted with them",
    "honest sites": "anyone who reads every message of a site, and works together with the sites that are not honest",
}
RELATIONS = {
    "zero-out": "whether a record took part",
    "replace-one": "which of two versions of a record was used",
}
HONEST = (
    "An honest site follows the protocol, reveals its noise and its pair secrets to nobody, and does not use its noise "
    "to read messages. Anyone who has its secrets (X25519, ChaCha20) can remove the noise that it shares"
)
ALONE = "Several records of one person add up. The guarantee is for each record by itself."
LIMITS = (  # what no ε covers, besides
    "Metrics are on public test data. No ε covers them. The number of records at each site is public.",
    "Every other run on these records adds to this ε.",
    "If people chose settings by looking at results on these records, this ε does not count that.",
)
WEAK = 10.0  # from this ε on a guess may be right 99.995 % of the time
_CURVES = ("test_accuracy", "mean_node_accuracy", "worst_node_accuracy", "test_loss")
_TESTED = (*_CURVES, *metrics.KEYS)  # public if the test data are
_SIMULATED = ("train_loss",)  # computed from records: docs/privacy.md, "What is not covered"
_ROUNDING = 1e-6


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
        s, own = self.summary, self.summary.get("site") or {}
        alone = s["graph"] == "alone" and s["nodes"] > 1
        whose = "each site's own; metrics are means" if alone else "average of the sites' models"
        model = ["this site's own" if own else whose, s.get("model"), s.get("pretraining")]
        spent = [f"{one.name} ε = {bound(one.epsilon)}{_of_budget(one.budget)}" for one in self.sites]
        clock = f"; {s['virtual_seconds']:.4g} virtual s" if clocked(s["virtual_seconds"], s["steps"]) else ""
        faults = ", ".join(f"{key} {value}" for key, value in (s.get("faults") or {}).items())
        rows = [
            ("run", self.what),
            ("model", "; ".join(filter(None, model))),
            *metric_rows(s),
            ("sites", ", ".join(spent) if own or s.get("sites") else ""),
            ("per-sample gradients", s.get("gradients")),
            ("clip", self._clip),
            ("noise σ", span(s["sigma"])),
            ("this site's model", "\n".join(site_lines(s)) if own else ""),
            ("messages", _messages(own) if "messages" in own else ""),
            ("simulated faults", faults),
            ("time", f"{s['seconds']:.1f} s{clock}"),
            ("sent", f"{in_units(s['bytes_sent'])} by {'this site' if own else 'all sites'}"),
        ]
        return [(label, value) for label, value in rows if value]

    @property
    def _clip(self) -> str:
        """The largest norm of a gradient, and where it came from."""
        if (clip := self.summary.get("clip")) is None:
            return ""
        if (planned := (self.plan or {}).get("clip_from")) is not None:
            return str(planned)
        return f"{clip:g} (set in {'the agreement' if 'site' in self.summary else 'run.toml'})"

    @property
    def privacy(self) -> list[str]:
        """The guarantee: whose records it covers, which adversary it holds against, and what it leaves open."""
        s, start = self.summary, self.summary.get("started_from")
        if not self.sites:
            return ["none: this method adds no noise. Treat messages and the model as you treat the records"]
        worst = max(self.sites, key=lambda site: (site.guess, site.epsilon))
        if math.isinf(worst.epsilon):
            return ["no finite bound is known for at least one site: treat what it sent as you treat its records"]
        epsilon, delta = ([getattr(site, name) for site in self.sites] for name in ("epsilon", "delta"))
        would, whose = "without a seed it would be " if s["simulation"] else "", "this" if self.elsewhere else "a"
        spent = f"ε = {span_up(epsilon)}, δ = {span_up(delta)} for each {self.unit} of {whose} site"
        asked = RELATIONS.get(s["relation"], s["relation"]).replace("record", self.unit)
        often = (
            f"{percent_up(worst.guess)} of the time at {worst.name} (ε = {up(worst.epsilon)}, δ = {small(worst.delta)})"
        )
        lines = [
            f"{would}{spent} ({s['relation']}, certified)",
            f"it holds against {AGAINST.get(s['trust'], s['trust'])}, even if they know every {self.unit} but one",
            f"if they guess {asked}, they are right at most {often}; without messages, 50 %",
        ]
        if worst.epsilon > WEAK:
            lines += ["this ε is too large to protect a record: treat what that site sent as you treat its records"]
        if max(delta):
            rare = f"with a probability of at most δ ({one_in(max(delta))}) for each {self.unit}"
            lines += [f"{rare}, messages may reveal more than ε allows, up to the whole {self.unit}"]
        if s.get("epsilon_nominal") is not None:
            lines += [f"nominal ε = {span_up(s['epsilon_nominal'])} by the published formula, which guarantees nothing"]
        if start is not None:
            counted = "" if start["counted"] else "not "
            lines += [f"started from the model of run {start['run'][:8]}; what that spent is {counted}counted here"]
        if self.elsewhere and self.config is not None:
            lines += [f"the other {self.elsewhere} sites keep their own ledgers, which are not in this folder"]
        return lines + self._of_a_person(worst) + self._trusted()

    def _of_a_person(self, worst: Site) -> list[str]:
        """Say what a person is, and what ε is for one at several sites."""
        person = self.summary.get("person")
        if not person:
            return []
        by_sites = ", ".join(f"{int(sites)}: {bound(epsilon)}" for sites, epsilon in worst.by_sites)
        lines = [f"ε is for {person['unit']} at a site: rows beyond that are not used"]
        if by_sites:
            lines += [
                f"ε of a person by the number of sites like {worst.name} that hold rows of that person: {by_sites}"
            ]
        return lines

    def _trusted(self) -> list[str]:
        """Say what shared noise asks one to trust, and what ε is if that trust is misplaced."""
        shared, n = self.summary.get("pairwise"), self.summary["nodes"]
        if not shared:
            return []
        curve = ", ".join(f"{int(h)}: {bound(epsilon)}" for h, epsilon in shared["curve"])
        return [
            f"it holds only if {shared['honest']} of {n} sites are honest, the site itself included. {HONEST}",
            f"ε of the site that has spent most, if this number of sites is honest: {curve}",
        ]

    @property
    def not_covered(self) -> list[str]:
        """Return what no ε of this run covers."""
        learnt = self.summary.get("pretraining")
        rests_on = [f"Records that the encoder learnt from: {learnt}."] if learnt else []
        alone = "A person's rows at more sites than ε was counted for, or under another identifier, add up."
        lines = [
            alone if self.unit == "person" else ALONE,
            *(line.replace("records", f"{self.unit}s") for line in LIMITS),
        ]
        return [*lines, *rests_on] if self.sites else []

    @property
    def facts(self) -> Rows:
        """Return label and value of everything that a terminal or a notebook shows."""
        more = {"privacy": self.privacy, "not covered": self.not_covered, "folder": [str(self.folder)]}
        return self.alerts + self.numbers + [(label, "\n".join(lines)) for label, lines in more.items() if lines]

    def curve(self, metric: str) -> list[tuple[float, float]]:
        """Return (step, value) of every evaluation that has the metric."""
        found = [(row["step"], row.get(metric)) for row in self.rows]
        return [(float(step), value) for step, value in found if value is not None and math.isfinite(value)]


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


def site_lines(s: Mapping[str, Any]) -> list[str]:
    """Describe a site's model, its distance from the others' last models, and the weight that left with sites."""
    own, n = s["site"], s["nodes"]
    apart = [f"{one['name']} {one['distance']:.2%}" for one in own["roster"] if one.get("distance") is not None]
    lines = [f"The others' last models differ from it by: {', '.join(apart)}."] if apart else []
    held, absent = own.get("weight_of_all"), own.get("messages", {}).get("left", [])
    if held is not None and abs(held - n) > _ROUNDING * n:
        gone = f" {', '.join(absent)} left with the rest." if held < n and absent else ""
        lines.append(f"The sites hold the weight {held:.3g} of {n}.{gone}")
        lines.append(f"Each step and its noise move the model {(n - len(absent)) / held:.3g} times as far as planned.")
    return lines


def warning_lines(warnings: Sequence[dict[str, Any]]) -> Rows:
    """Return what people should know of peers: the peer, what it sent, and whether this site refused it."""
    done = {True: "This site refused it", False: "This site accepted it"}
    return [(f"WARNING: {one['peer']}", f"{one['what']}. {done[one['refused']]} ({one['at']}).") for one in warnings]


def _of_budget(budget: float | None) -> str:
    return "" if budget is None else f" of {up(budget)}"


def _messages(own: Mapping[str, Any]) -> str:
    m, refused = own["messages"], ", ".join(f"{count} × {kind}" for kind, count in own["refused"].items())
    return f"{m['posted']} sent, {m['taken']} accepted, {m['missed']} missed at a deadline; refused: {refused or 'none'}"


def span(values: Sequence[float]) -> str:
    """Write one number, or the smallest and the largest."""
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} … {high}"


def clocked(virtual_seconds: float | None, steps: int) -> bool:
    """Tell whether a virtual clock says more than the number of steps: by default a step takes a second."""
    return virtual_seconds is not None and virtual_seconds != steps
