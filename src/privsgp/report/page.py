"""One page that tells a run, or compares several: self-contained, nothing is fetched, nothing private is in it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from privsgp.accounting.shown import span_up, up
from privsgp.algorithms import ALGORITHMS
from privsgp.errors import Refused
from privsgp.features.options import pretraining
from privsgp.files import in_units
from privsgp.files import write as write_whole
from privsgp.report import sections, words
from privsgp.report.charts import Chart, Figure, Table, bars, curves, number, percent
from privsgp.report.reading import Run, read
from privsgp.report.sections import Group, Section, Series, group
from privsgp.report.tested import tested
from privsgp.runs.shown import warning_lines
from privsgp.sites import signed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

NAME = "report.html"
SOON = 20_000  # releases whose ledgers are read again in about 0.3 s
ACCURACY = {"test_accuracy": "average model", "mean_node_accuracy": "sites, mean", "worst_node_accuracy": "worst site"}
CONSENSUS = Chart("Consensus error", "mean squared distance of the sites' models from their average", log=True)
LOSS = {"test_loss": "test", "train_loss": "training"}

TEMPLATES = Environment(
    loader=PackageLoader("privsgp.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True, keep_trailing_newline=True,
)  # fmt: skip
TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # ASCII, and <, >, & and ' by their numbers
TEMPLATES.filters["by_numbers"] = re.compile(r"([εδ] [=≤] \S+)").split  # every other part is an ε or a δ


def write(folders: Sequence[Path], out: Path) -> None:
    """Write the page of these runs to `out`, whole or not at all."""
    runs = [read(folder) for folder in folders]
    _refuse_twice(runs)
    text = page(runs)
    try:
        write_whole(out, text)
    except OSError as error:
        raise Refused(f"cannot write the report {out}: {error.strerror}", "choose another file with --out") from error


def _refuse_twice(runs: Sequence[Run]) -> None:
    """Refuse two folders of one run: it would count as two seeds that agree."""
    seen: dict[str, Path] = {}
    for run in runs:
        number = str(run.identity.get("run") or run.path.resolve())
        if number in seen:
            raise Refused(f"{seen[number]} and {run.path} are the same run", "name every run once")
        seen[number] = run.path


def leave(folder: Path, summary: dict[str, Any]) -> None:
    """Write a finished run's page into its folder, once, and only where that takes no longer than a moment."""
    ledgers = 1 if "site" in summary else summary["nodes"]
    if ledgers * summary["steps"] <= SOON and not (folder / NAME).exists():
        write([folder], folder / NAME)


def page(runs: Sequence[Run]) -> str:
    """Return the page; the same folders give the same bytes.

    Guarantee: as `reading.read`: of runs without a seed nothing is shown that their noised messages did not tell.
    Assumes: test data are public.
    """
    groups = group(runs)
    alone = len(groups) == 1
    return TEMPLATES.get_template("page.html").render(
        title=groups[0].label if alone else f"{len(groups)} configurations compared",
        style=_file("page.css"),
        script=_file("page.js"),
        banners=_banners(runs),
        lead=_lead(groups),
        figures=_figures(groups[0]) if alone else [],
        comparison=None if alone else _comparison(groups),
        training=_training(groups),
        groups=[(g.label, _sections(g, len(groups))) for g in groups],
    )


def _file(name: str) -> str:
    return (resources.files("privsgp.report") / name).read_text("utf-8")


def _banners(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Say loudly what must not be overlooked, and why."""
    count = sum(run.simulation for run in runs)
    which = "The" if count == len(runs) else f"{count} of {len(runs)} runs: the"
    said = f"{which} configuration has a seed, so anyone can compute the noise again."
    real = [run for run in runs if run.config.private and not run.simulation]
    adds = "ε is that of one run. Runs on the same records add up, unless one continued the ledgers of the other."
    banners = [("Simulation, not private.", said)] if count else []
    banners += [(f"{len(real)} private runs.", adds)] if len(real) > 1 else []
    early = [f"{run.path.name}: {run.length} were taken. {run.ended}." for run in runs if run.ended]
    named = [row for run in runs for row in warning_lines((run.summary or {}).get("site", {}).get("warnings", []))]
    return banners + [("Ended early.", why) for why in early] + [(f"Warning: {peer}.", text) for peer, text in named]


def _lead(groups: Sequence[Group]) -> str:
    runs = sum(len(g.runs) for g in groups)
    if len(groups) > 1:
        return f"{runs} runs of {len(groups)} configurations; bands span runs that differ only in their seed."
    c = groups[0].first.config
    seeds = f", {runs} seeds" if runs > 1 else ""
    kind = ALGORITHMS[c.algorithm.name].network
    talk = {"server": "a server", "alone": "no messages"}.get(kind, f"{c.graph.name} graph")
    return f"{c.algorithm.name} · {c.data.nodes} sites · {talk} · {groups[0].first.length}{seeds}"


def _figures(g: Group) -> list[tuple[str, str]]:
    """Return the few numbers one asks for first, with their names."""
    run, cells = g.first, []
    if g.last("test_accuracy"):
        cells.append((_mean(g, "test_accuracy", percent), f"test accuracy, average model{_rests_on(g)}"))
        if g.last("auc"):
            cells.append((_mean(g, "auc", _loss), f"AUC, average model{_rests_on(g)}"))
        cells.append((_mean(g, "worst_node_accuracy", percent), "worst site's own model"))
    elif g.last("r2"):
        cells.append((_mean(g, "r2", _loss), "R² on test data, average model"))
    elif g.last("test_loss"):
        cells.append((_mean(g, "test_loss", _loss), "test loss, average model"))
    cells.append((_epsilon(g), _epsilon_words(run)))
    if run.summary is not None:
        cells.append((_time(run.summary["seconds"]), f"for {run.length}"))
        own = "site" in run.summary  # the folder of one site, which knows of its own messages
        sent = run.summary["bytes_sent"] / (1 if own else run.config.data.nodes)
        cells.append((in_units(sent), "sent by this site" if own else "sent by each site"))
    else:
        cells.append(("unfinished", f"evaluated up to step {run.steps:,}"))
    return cells


def _rests_on(g: Group) -> str:
    """Say what public pre-training a number rests on, if any."""
    learnt = pretraining(g.first.config.features.name)
    return "" if learnt is None else f"; {learnt}"


def _mean(g: Group, key: str, write: Callable[[float], str]) -> str:
    values = g.last(key)
    if not values:
        return "–"
    mean, low, high = (write(v) for v in (sum(values) / len(values), min(values), max(values)))
    if low == high:
        return mean
    unit = mean[mean.find(" ") :] if " " in mean else ""
    return f"{mean} ({low.removesuffix(unit)}–{high.removesuffix(unit)})"


def _epsilon(g: Group) -> str:
    spent = [words.promised(run, s) for run in g.runs for s in run.statements]
    if not spent:
        return "none"
    if math.isinf(max(spent)):
        return "no finite bound"
    return f"ε = {span_up(spent, 3)}"


def _up(epsilon: float) -> str:
    return up(epsilon, 3)


def _epsilon_words(run: Run) -> str:
    if not run.config.private:
        return "privacy: this method adds no noise"
    deltas = [words.small(delta) for delta in sorted({s.delta for s in run.statements})]
    return f"δ = {' … '.join(deltas[:: max(1, len(deltas) - 1)])}, certified, per record"


def _loss(value: float) -> str:
    """Write losses with the same decimals, so that they compare; very small and very large ones by their digits."""
    return f"{value:.3f}" if 0.01 <= value < 1000 else number(value)


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _comparison(groups: Sequence[Group]) -> Table:
    head = ["configuration", "private?", "differs from the first in", "runs", "privacy", "test accuracy", "worst site",
            *(["AUC"] if any(g.last("auc") for g in groups) else []),
            *(["R²"] if any(g.last("r2") for g in groups) else []), "test loss", "time"]  # fmt: skip
    rows = [
        [
            g.label + _rests_on(g), words.standing(g.first), "; ".join(g.changes(groups[0])) or "–", str(len(g.runs)),
            _epsilon(g), _mean(g, "test_accuracy", percent), _mean(g, "worst_node_accuracy", percent),
            *([_mean(g, "auc", _loss)] if "AUC" in head else []), *([_mean(g, "r2", _loss)] if "R²" in head else []),
            _mean(g, "test_loss", _loss), _mean(g, "seconds", _time),
        ]
        for g in groups
    ]  # fmt: skip
    return Table(head, rows)


def _training(groups: Sequence[Group]) -> Section | None:
    banded = any(len(g.runs) > 1 for g in groups)
    several = "mean of the runs; the band goes from the lowest to the highest" if banded else ""
    drawn = [_metric(Chart("Accuracy on test data", several, write=percent), ACCURACY, groups)]
    drawn += [_metric(Chart("Loss", several), LOSS, groups)]
    if len(groups) > 1:  # of one alone the consensus error stands beside the network
        drawn += [_metric(replace(CONSENSUS, note=several), {"consensus_error": ""}, groups), _trade(groups)]
    return sections.charted("Training", *drawn)


def _trade(groups: Sequence[Group]) -> Figure | None:
    """Draw accuracy against the ε of the node that is worst off, where both are known."""
    points = []
    for g in groups:
        spent, accuracy = [words.promised(run, s) for run in g.runs for s in run.statements], g.last("test_accuracy")
        if spent and accuracy and not math.isinf(max(spent)):
            mean = sum(accuracy) / len(accuracy)
            points.append(Series(g.label, [max(spent)], [mean], [min(accuracy)], [max(accuracy)]))
    chart = Chart("Accuracy against privacy", "the site that is worst off", "ε", room=True, write=percent, write_x=_up)
    return curves(chart, points) if len(points) > 1 else None


def _metric(chart: Chart, metrics: dict[str, str], groups: Sequence[Group]) -> Figure | None:
    """Draw one run's related metrics together, or the first of them for all groups."""
    if len(groups) == 1:
        found = [groups[0].curve(metric, name) for metric, name in metrics.items()]
    else:
        first = next(iter(metrics))
        found = [g.curve(first) for g in groups]
        chart = replace(chart, title=chart.title if len(metrics) == 1 else f"{chart.title}, {metrics[first]}")
    series = [s for s in found if s is not None]
    return curves(chart, series) if series else None


def _sections(g: Group, groups: int) -> list[Section]:
    """Return what is told of one configuration, in the order of the page."""
    room = sections.MOST_NUMBERS // groups
    run = g.first
    told = [
        tested(run),
        _privacy(run),
        sections.agreed(run),
        _network(run, room),
        sections.plan(run.plan),
        sections.repeat(g),
    ]
    return [section for section in told if section is not None]


def _privacy(run: Run) -> Section:
    known = not all(math.isinf(s.epsilon) for s in run.statements)
    drawn = [figure for figure in (_spent(run), _honesty(run)) if figure is not None] if known else []
    return Section("privacy", {"headline": words.headline(run), "said": words.paragraphs(run), "drawn": drawn})


def _spent(run: Run) -> Figure:
    spent = [(s.site or str(s.node), None if math.isinf(s.epsilon) else s.epsilon, s.budget) for s in run.statements]
    note = "from the ledgers, every line checked" + ("; the line is the budget" if spent[0][2] is not None else "")
    chart = Chart("ε spent by each site", note, x_label="site", write=_up)
    return bars(chart, spent)


def _honesty(run: Run) -> Figure | None:
    """Draw what is left of the promise where fewer sites are honest than it takes for granted."""
    curve = [(h, epsilon) for h, epsilon in words.known_curve(run).items() if epsilon is not None]
    if len(curve) < 2:
        return None
    x, y = [float(h) for h, _ in curve], [epsilon for _, epsilon in curve]
    taken = run.config.honest
    note = f"ε of the site that spent most, if only so many sites are honest; {taken} were taken to be"
    chart = Chart("If fewer sites are honest", note, "honest sites", zero=True, write=_up, mark=(taken, "taken"))
    return curves(chart, [Series("ε", x, y, y, y)])


def _network(run: Run, room: int) -> Section | None:
    moving = sections.moving(run, room)
    chart = replace(CONSENSUS, cursor=moving is not None)
    agreed = _metric(chart, {"consensus_error": "consensus error"}, [Group("", [run])])
    if moving is None:
        return sections.charted("Agreement", agreed)
    planned = signed.is_between_sites(run.path)
    moving |= {"weights": None} if planned else {}  # those of the sites, not of the graph, are what they had
    return Section("network", {"moving": moving, "first": _first_links(moving), "agreed": agreed, "planned": planned})


def _first_links(told: dict[str, Any]) -> Table:
    """Tell the links of the first steps in words: a table for who cannot see the circle."""
    rows = []
    for k, phase in list(zip(told["steps"], told["phase"], strict=True))[: min(8, len(told["links"]))]:
        links = told["links"][phase]
        pairs = [f"{i}→{j}" for i, j in zip(links[::2], links[1::2], strict=True)]
        rows.append([str(k), " ".join(pairs)])
    return Table(["step", "messages"], rows)
