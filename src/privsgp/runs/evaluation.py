"""Private evaluation: a finished model on records that no site trained on, from one noised histogram.

The evaluated model is a function of releases that are counted. Held-out records are never among those that this run
trained on. The release is charged to the held-out records and, where a person may have records on both sides, to the
records that were trained on as well: the two budgets then add up for that person.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.accounting.book import Book
from privsgp.accounting.shown import up
from privsgp.accounting.statements import statements
from privsgp.data.schema import Category, Target, YesNo
from privsgp.engine.folder import Folder
from privsgp.engine.formats import Evaluated
from privsgp.errors import Refused
from privsgp.files import read_json, write_json
from privsgp.runs import booked
from privsgp.runs import config as configs
from privsgp.runs.problem import unencoded
from privsgp.runs.released import next_folder, planned, total
from privsgp.runs.resolve import pooled
from privsgp.runs.result import load
from privsgp.statistics.estimates import NONE, Confusion, Groups, Residuals, Scores
from privsgp.statistics.release import added

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from privsgp.runs.config import Config
    from privsgp.runs.problem import Problem
    from privsgp.runs.result import Result
    from privsgp.statistics.release import Array

NAME = "evaluation.json"
WHY_ADDED = "the unit is one record: this is the sum for a person with training and test records"


def of_run(run: Path, config: Config, data_dir: Path | None = None) -> dict[str, Any]:
    """Evaluate a run on the records that its configuration holds out."""
    share, started = config.evaluation.share, configs.started(Folder(run).config)
    if share is None:
        raise Refused(
            "no evaluation.share",
            'name files that no site trained on: privsgp evaluate RUN "test-{site}.csv" --private',
        )
    same = (config.seed, share, config.data) == (started.seed, started.evaluation.share, started.data)
    if not same:
        raise Refused(f"{run} was trained with another [data], seed or evaluation.share", "name the run's own run.toml")
    config, problem = pooled(config, unencoded(config, data_dir, range(config.data.nodes)))
    return _evaluated(run, config, problem.side(share, held_out=True), problem)


def on_files(run: Path, template: str, changes: Sequence[str]) -> dict[str, Any]:
    """Evaluate a run on files of the sites that no site trained on, "test-{site}.csv"."""
    started = configs.started(Folder(run).config)
    config = started.with_section("data", path=str(Path(template).resolve()), test_path=None, sizes=None)
    values = config.model_dump()
    values["evaluation"]["share"] = None
    config = configs.parse(values, changes, Path())
    config, problem = pooled(config, unencoded(config, None, range(config.data.nodes)))
    return _evaluated(run, config, problem, problem)


def _evaluated(run: Path, config: Config, held: Problem, whole: Problem) -> dict[str, Any]:
    result, asked, folder = load(run), config.evaluation, Folder(run)
    if (config.privacy.relation, config.seed is None) != (result.summary["relation"], not result.summary["simulation"]):
        raise Refused(f"{run} was trained under another privacy.relation, or seed", "evaluate it under the same ones")
    if not folder.model.exists() or not (config.private or config.seed is not None):
        raise Refused(
            f"{run} has no model that the sites agreed on under a counted budget",
            "evaluate the average model of a private run",
        )
    if config.seed is None and None in (result.summary.get("epsilon_spent") or [None]):
        raise Refused(
            f"a site of {run} trained without a finite ε: its counts would reveal training records",
            "evaluate a run in which every site has noise",
        )
    _refuse_trained(folder, config, held)
    layout, rows = _vectors(result, config, held)
    release = planned(config, layout.vectors, held.samples, asked.epsilon, asked.delta)
    sums = [added(release.vectors, rows[part]) for part in held.parts]
    records = booked.records_of(whole.hashes, whole.dataset, whole.parts)
    place = next_folder(run, "evaluation")
    cells = total(release, sums, config, asked.epsilon, place, "evaluate", records)
    persons = sum(held.samples)
    found = {
        "version": 1, "simulation": config.seed is not None, "epsilon": max(release.epsilon), "delta": asked.delta,
        "relation": release.relation, "held_out": held.samples, "noise": release.noise.name,
        "honest": config.honest if release.noise.shared else None, "sigma": release.sigma,
        "model": hashlib.sha256(folder.model.read_bytes()).hexdigest(), "added": WHY_ADDED,
        "trained": _trained(result), "metrics": [e.to_json() for e in layout.estimates(cells, persons, release.sigma)],
        "calibration": layout.calibration(cells, persons, release.sigma) if isinstance(layout, Scores) else [],
    }  # fmt: skip
    write_json(place / NAME, found)
    return found | {"folder": str(place)}


def _trained(result: Result) -> dict[str, Any]:
    """Return what training has spent, of the site that has spent most."""
    spent = [e for e in result.summary.get("epsilon_spent") or [] if e is not None]
    return {"epsilon": max(spent, default=None), "delta": max(result.summary["delta"], default=None)}


def _refuse_trained(folder: Folder, config: Config, held: Problem) -> None:
    """Refuse records that the run trained on, one by one: no metric on them is held out, and both budgets add up."""
    known = booked.records_of(held.hashes, held.dataset, [np.concatenate(held.parts)])[0]
    book = Book()
    if config.seed is None and not any(entry.run == folder.run for entry in book.entries()):
        raise Refused(
            f"the budget book does not know the run in {folder.path}",
            "evaluate where it was trained: only that book knows which records it trained on",
        )
    for entry, shared in book.overlapping(known.hashes):
        if entry.run == folder.run:
            raise Refused(
                f"{shared:,} of the {len(known.hashes):,} records were trained on in {folder.path}",
                "take test records that no site trained on, also none with equal values",
            )


def _vectors(result: Result, config: Config, held: Problem) -> tuple[Scores | Confusion | Residuals, Array]:
    """Return what the cells mean, and each record's vector."""
    x, asked, card = held.dataset.x, config.evaluation, result.card
    if card["loss"] not in ("cross-entropy", "binary", "mse") or held.dataset.y.ndim > 1:
        raise Refused("a model whose outputs are no classes and no single number", "evaluate it on public data")
    if card["loss"] == "mse":
        return _residuals(result, config, held)
    y = held.dataset.y.astype(np.int64)
    groups, group = _grouped(config, x)
    p = result.predict_proba(x)
    if card["classes"] != 2:
        confusion = Confusion(card["classes"], groups)
        return confusion, confusion.rows(result.calibration.classes(np.nan_to_num(p)), y, group)
    threshold = 0.5 if result.calibration.threshold is None else result.calibration.threshold
    scores = Scores.of(asked.bins, threshold, groups)
    return scores, scores.rows(p[:, 1], y, group)


def _residuals(result: Result, config: Config, held: Problem) -> tuple[Residuals, Array]:
    schema = config.data.schema
    if schema is None or not isinstance(schema.target, Target) or config.evaluation.subgroups:
        raise Refused(
            "private evaluation of numbers without a schema, or by subgroups", "give the target a public range there"
        )
    low, high = schema.target.limits
    clip = config.evaluation.residual or (high - low) / 4
    layout = Residuals(clip, (low + high) / 2, (high - low) / 2)
    centre, scale = schema.unit
    said = np.asarray(result.predict(held.dataset.x), float).reshape(-1)
    return layout, layout.rows(said, centre + scale * held.dataset.y.astype(float).reshape(-1))


def _grouped(config: Config, x: NDArray[Any]) -> tuple[Groups, NDArray[np.int64]]:
    """Return the public subgroups, and each record's number among them."""
    names, schema = config.evaluation.subgroups, config.data.schema
    number = np.zeros(len(x), np.int64)
    if not names:
        return NONE, number
    values: list[tuple[str, ...]] = []
    for name in names:
        column = None if schema is None else schema.encoded.get(name)
        if schema is None or not isinstance(column, Category | YesNo):
            raise Refused(f"evaluation.subgroups: {name!r}", "name columns of the schema: a category, or yes/no")
        known = column.known if isinstance(column, Category) else ["yes", "no"]
        if isinstance(column, Category):
            own = x[:, [schema.features.index(f"{name} = {value}") for value in known]].argmax(1)
        else:
            own = (x[:, schema.features.index(name)] < 0).astype(np.int64)
        number = number * len(known) + own
        values.append(tuple(known))
    return Groups(tuple(names), tuple(values)), number


def of_folder(run: Path) -> list[dict[str, Any]]:
    """Return the private evaluations of a run, the first one first; each ε is computed again from the ledgers."""
    places = sorted(run.glob(f"evaluation-*/{NAME}"), key=lambda path: int(path.parent.name.rpartition("-")[2]))
    return [
        read_json(path, Evaluated) | {"epsilon": max(one.epsilon for one in statements(path.parent))} for path in places
    ]


def rows_of(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return metric, group and value of each metric, with its interval, or how many persons would be needed."""
    said = []
    for one in found["metrics"]:
        if one["value"] is not None:
            value = f"{one['value']:.3f} ({one['low']:.3f} to {one['high']:.3f})"
        elif one["persons_needed"] is None:
            value = "not shown: too few records"
        else:
            value = f"not shown: needs about {one['persons_needed']:,} held-out records"
        said.append((one["metric"].replace("_", " "), one["group"], value))
    return said


def statement(found: dict[str, Any]) -> list[str]:
    """Say what the evaluation spent, on whom, and against which adversary."""
    trained, n = found["trained"], len(found["held_out"])
    would = "without a seed it would be " if found["simulation"] else ""
    lines = [
        f"{sum(found['held_out']):,} held-out records of {n} sites; {found['noise']} noise, one release of each site",
        f"{would}ε = {up(found['epsilon'])}, δ = {up(found['delta'])} for each held-out record ({found['relation']})",
    ]
    if found["honest"] is not None:
        lines.append(f"only if {found['honest']} of {n} sites are honest, the site itself included")
    if trained["epsilon"] is not None:
        both = up(found["epsilon"] + trained["epsilon"]), up(found["delta"] + trained["delta"])
        lines.append(f"together with training ε = {both[0]}, δ = {both[1]}: {found['added']}")
    return lines
