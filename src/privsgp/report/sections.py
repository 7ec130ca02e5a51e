"""The parts of a page: runs side by side, the network over time, the plan, who agreed, and how to have a run again.

Runs that differ in nothing but their seed are one group, with a mean and a band. What is shown of the network is public
and follows from the configuration: the graph and, on a simulated network, its faults. Weights are those of the run
because the engine's own mixing computes them, on models without parameters to speak of.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from privsgp.accounting.mechanisms import nominal
from privsgp.accounting.shown import up
from privsgp.planner import settle as planning
from privsgp.report.charts import Chart, Figure, Table, curves, number
from privsgp.runs import build
from privsgp.runs import config as configs
from privsgp.runs.shown import site_lines
from privsgp.sites import signed as signatures
from privsgp.transport.connect import connect
from privsgp.transport.rendezvous import World

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from privsgp.graph import Graph
    from privsgp.report.reading import Run
    from privsgp.sites.signed import Signatory


MOST_POINTS = 200


class Section(NamedTuple):
    """A part of the page: what it tells, and the macro of templates/sections.html that writes it."""

    macro: str
    told: dict[str, Any]


def charted(title: str, *figures: Figure | None) -> Section | None:
    """Return a section that is a title and those charts that there are; nothing where there are none."""
    drawn = [figure for figure in figures if figure is not None]
    return Section("charted", {"title": title, "figures": drawn}) if drawn else None


@dataclass(frozen=True)
class Series:
    """A curve: a mean over runs, and the lowest and highest of them."""

    name: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]

    @property
    def banded(self) -> bool:
        """Whether several runs are behind it."""
        return self.low != self.high


@dataclass(frozen=True)
class Group:
    """Runs of one configuration with different seeds."""

    label: str
    runs: Sequence[Run]

    @property
    def first(self) -> Run:
        """The run that stands for the group where one is enough."""
        return self.runs[0]

    def curve(self, metric: str, name: str | None = None) -> Series | None:
        """Return a metric over the steps at which all runs were evaluated; None if there are none."""
        columns = [dict(run.column(metric)) for run in self.runs]
        steps = _thinned(sorted(set(columns[0]).intersection(*columns[1:])))
        values = [[column[step] for column in columns] for step in steps]
        if not steps:
            return None
        return Series(
            name or self.label,
            [float(step) for step in steps],
            [sum(v) / len(v) for v in values],
            [min(v) for v in values],
            [max(v) for v in values],
        )

    def last(self, key: str) -> list[float]:
        """Return a number of every finished run's summary."""
        found = [run.summary.get(key) for run in self.runs if run.summary is not None]
        return [value for value in found if value is not None]

    def changes(self, other: Group) -> list[str]:
        """Name the keys in which this group differs from another, seeds left out."""
        return [c for c in configs.differences(other.first.config, self.first.config) if not c.startswith("seed:")]


def group(runs: Sequence[Run]) -> list[Group]:
    """Put runs together that differ in nothing but their seed, in the order given."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(_kind(run), []).append(run)
    names = [members[0].config.name for members in found.values()]
    return [
        Group(name if names.count(name) == 1 else members[0].path.resolve().name, members)
        for name, members in zip(names, found.values(), strict=True)
    ]


def _kind(run: Run) -> str:
    shared = run.config.shared() | {"seed": None, "simulation": run.simulation}
    faults = run.faults and dataclasses.replace(run.faults, seed=0)
    return json.dumps([shared, repr(faults)], sort_keys=True)


def _thinned(steps: list[int]) -> list[int]:
    """Keep every so-manieth step, the last one included: a screen has no room for more."""
    stride = -(-len(steps) // MOST_POINTS) or 1
    return steps[::-1][::stride][::-1]


MOST_NUMBERS = 120_000  # of links and weights on a page: a few hundred kB
NODES = 128  # above this a circle shows nothing


def moving(run: Run, room: int = MOST_NUMBERS) -> dict[str, Any] | None:
    """Return what the page's script draws: the steps it can show, links by step, lost ones, absent nodes, weights.

    About `room` numbers at most: a run of many steps is shown at some of them.
    `links` has one list [source, target, source, target, …] for each phase, and `phase` says which one a step has;
    `lost` are places among the links of a step.
    """
    graph = build.make_graph(run.config)
    if graph.nodes > NODES or run.steps == 0 or graph.name in ("server", "alone"):
        return None
    repeats = graph.period is not None and run.faults is None
    shown = _shown(graph, run.steps, room, repeats=repeats)
    phases = range(graph.period or 0) if repeats else shown
    return {
        "nodes": graph.nodes,
        "steps": shown,
        "links": [np.stack(_messages(run, graph, k)[:2], 1).ravel().tolist() for k in phases],
        "phase": [k % len(phases) for k in shown] if repeats else list(range(len(shown))),
        "lost": [] if repeats else [np.flatnonzero(_messages(run, graph, k)[2]).tolist() for k in shown],
        "absent": [] if run.faults is None else [[*run.faults.down(k), *run.faults.left(k)] for k in shown],
        "weights": _weights(run, graph, shown),
    }


def _shown(graph: Graph, steps: int, room: int, *, repeats: bool) -> list[int]:
    """Return the steps of the slider: all of them, or as many as a page has room for."""
    links = 0 if repeats else len(graph.edges(0).source)
    most = max(2, room // (2 * links + graph.nodes))
    return [int(k) for k in np.unique(np.linspace(0, steps - 1, min(steps, most)).round())]


def _messages(run: Run, graph: Graph, k: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return source, target and whether it was lost, of the messages that were sent at step k."""
    edges = graph.edges(k)
    away = edges.source != edges.target
    source, target = edges.source[away], edges.target[away]
    if run.faults is None:
        return source, target, np.zeros(len(source), dtype=bool)
    lost, _ = run.faults.weather(k, len(source))
    there = ~np.isin(source, [*run.faults.down(k), *run.faults.left(k)]) & ~np.isin(target, run.faults.left(k))
    return source[there], target[there], lost[there]


def _weights(run: Run, graph: Graph, shown: list[int]) -> list[list[float]] | None:
    """Return the weights w before each step that is shown; None where they are 1 throughout."""
    wanted = set(shown)
    kept = [[round(float(v), 4) for v in w] for k, w in enumerate(_walk(run, graph, shown[-1] + 1)) if k in wanted]
    return None if all(v == 1 for w in kept for v in w) else kept


def _walk(run: Run, graph: Graph, steps: int) -> Iterator[torch.Tensor]:
    x, w = torch.zeros(graph.nodes, 1, dtype=torch.float64), torch.ones(graph.nodes, dtype=torch.float64)
    transport = connect(graph, x, World(), run.faults)
    for k in range(steps):
        yield w
        x, w = transport.mix(k, x, w)


def plan(planned: dict[str, Any] | None) -> Section | None:
    """Return the plan's part of the page; nothing where nothing was planned."""
    if planned is None or planned.get("asked") is None:  # plans of older releases do not tell what was given
        return None
    said = [f"Planned: {planning.described(planned)}.", f"{_steps(planned)} {SCORE}"]
    rows = [[m["method"], number(m["steps"]), *(_or_none(m[key]) for key in _COLUMNS)] for m in planned["methods"]]
    told = {"said": _sites(said), "figures": _drawn(planned), "warned": _sites(planned["warnings"])}
    return Section("plan", told | {"methods": Table(["method", "steps", *_COLUMNS.values()], rows)})


SCORE = (
    "A rehearsal is the run in miniature on these data; its score is the average model's accuracy on samples it has "
    "not seen, in a regression minus the loss."
)
_COLUMNS = {"step_size": "step size", "sigma": "σ", "noise_in_average": "noise in the average", "score": "score"}


def _or_none(value: float | None) -> str:
    return "–" if value is None else number(value)


def _sites(lines: Sequence[str]) -> list[str]:
    """Call nodes what the rest of the page calls them; the planner speaks to who writes configurations."""
    return [line.replace("node", "site") for line in lines]


def _steps(plan: dict[str, Any]) -> str:
    """Say what K* is best for, which is not the bound: docs/planner.md, three answers."""
    if plan["asked"]["steps"] != "auto":
        return ""
    if nominal(plan["accountant"]):
        return "K* is where the bound is smallest (Corollary 1)."
    found = "about as many steps of this size as score best"
    if plan["asked"]["step_size"] == "auto":
        found = "the fewest steps that score like the best with noise close to the least"
    return (
        f"K* is {found} in rehearsal. It does not minimise the bound, a worst case, which is smallest at "
        f"K\u00a0=\u00a0{plan['bound_steps']:,}."
    )


def _drawn(plan: dict[str, Any]) -> list[Figure]:
    """Draw what plan/picture.py draws."""
    at, steps, star = plan["steps"], plan["curve_steps"], "*" if plan["asked"]["steps"] == "auto" else ""
    mark = (float(at), f"K{star} = {at}") if steps[0] <= at <= steps[-1] else None
    bound = Chart("Bound on E‖∇f‖²", "Theorem 1", "steps K", log=True, log_x=True, mark=mark)
    noise = Chart("Noise in the average model", "per coordinate", "steps K", log_x=True, zero=True, mark=mark)
    return [_by_method(bound, plan, "bound_curve"), _by_method(noise, plan, "noise_curve")]


def _by_method(chart: Chart, plan: dict[str, Any], key: str) -> Figure:
    x = [float(k) for k in plan["curve_steps"]]
    return curves(chart, [Series(m["method"], x, m[key], m[key], m[key]) for m in plan["methods"]])


def agreed(run: Run) -> Section | None:
    """Return who signed a run between sites, and what was agreed on; nothing of other runs."""
    signed = signatures.read(run.path)
    if signed is None:
        return None
    site = (run.summary or {}).get("site") or {}
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
    whose = f" This is the report of {site['name']}, who knows no model but its own." if site else ""
    said = f"{signed.name}, proposed {signed.created}; every signature was checked for this page.{whose}"
    told = {"run": signed.run, "said": said, "complete": signed.complete, "sites": Table(head, rows)}
    return Section("agreed", told | {"ended": site_lines(run.summary) if site and run.summary else []})


def _heard(one: Signatory, step: int | None) -> str:
    told = "none" if step is None else f"step {step:,}"
    return f"{told}; left for good" if one.left else told


def repeat(g: Group) -> Section:
    """Return the part of the page that tells how to have the runs again."""
    made = Table(["run", "seed", "started", "privsgp", "Python", "torch"], [_made(run) for run in g.runs])
    came = [f"{_number(run)}  {_command(run)}" for run in g.runs]
    return Section("repeat", {"again": _commands(g), "made": made, "came": came, "config": g.first.config.toml()})


def _commands(g: Group) -> str:
    """Return what to type to have the run again."""
    run, made = g.first, g.first.identity.get("versions", {})
    first = f"# privsgp {made.get('privsgp')}, torch {made.get('torch')}, Python {made.get('python')}"
    if run.summary is not None and "site" in run.summary:
        return f"{first}\nprivsgp join agreement.study --data FILE   # each site, under a new agreement (agree propose)"
    if run.config.model.name == "module":
        return f"{first}\n# run the Python program again that called privsgp.train; its configuration is below"
    seeds = "" if len(g.runs) == 1 or run.config.seed is None else " --set seed=…"
    processes = run.processes
    start = "privsgp" if processes == 1 else f"torchrun --nproc-per-node {processes} -m privsgp"
    given = any(word.partition("=")[0] == "--data-dir" for r in g.runs for word in r.identity.get("command", []))
    where = " --data-dir DATA" if given else ""
    options = f"{where}{_fault_options(run)}{seeds}"
    if run.config.data.path is not None:
        first += "\n# put config.toml where run.toml was: paths in it are relative to it"
    return f"{first}\n{start} train config.toml --out again{options}   # config.toml is below"


def _fault_options(run: Run) -> str:
    f = run.faults
    if f is None:
        return ""
    options = [f"--drop {f.drop:g}", f"--delay {f.delay}", f"--staleness {f.staleness}"]
    options += [f"--crash {node}@{first}+{stop - first}" for node, first, stop in f.crashes]
    return " " + " ".join([*options, *(f"--leave {node}@{step}" for node, step in f.leaves)])


def _made(run: Run) -> list[str]:
    made = run.identity.get("versions", {})
    seed = "none: secret" if run.config.seed is None else str(run.config.seed)
    return [_number(run), seed, str(run.identity.get("started", "")),
            *(str(made.get(key, "")) for key in ("privsgp", "python", "torch"))]  # fmt: skip


def _number(run: Run) -> str:
    return str(run.identity.get("run", ""))[:8]


def _command(run: Run) -> str:
    told = run.identity.get("command", [])
    command = shlex.join([Path(word).name if i == 0 else word for i, word in enumerate(told)])
    return command.replace("__main__.py", "python -m privsgp", 1)
