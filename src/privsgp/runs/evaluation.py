"""Private evaluation: a finished model on persons or records that no site trained on, from one noised histogram.

The evaluated model is a function of releases that are counted. If a person is trained on or held out at all sites, a
person's budget is the larger one of training and evaluation. Otherwise the two add up: if the unit is a record, for a
person may have records on both sides, and if a person may be at several sites.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.accounting.book import Book, Records
from privsgp.accounting.shown import up
from privsgp.accounting.statements import statements
from privsgp.data.schema import Number, Schema
from privsgp.engine.folder import Folder
from privsgp.engine.formats import Evaluated
from privsgp.errors import Refused
from privsgp.files import read_json, write_json
from privsgp.runs import booked, description, sums, views
from privsgp.runs import config as configs
from privsgp.runs.description import shown
from privsgp.runs.problem import Problem, unencoded
from privsgp.runs.resolve import pooled
from privsgp.runs.result import CALIBRATION, Result, best_model, digest, load, of_model
from privsgp.runs.result import EVALUATION as NAME
from privsgp.statistics.estimates import NONE, Confusion, Groups, Residuals, Scores
from privsgp.statistics.survival import Risks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from privsgp.data.dataset import Dataset
    from privsgp.runs.config import Config
    from privsgp.runs.sums import Array, Total

    Say = Callable[[str], None]
    Layout = Scores | Confusion | Residuals | Risks

_FEW_VALUES = 20  # the width of a range that may have no other values than whole numbers
BY_RECORD = "the unit is one record: this is the sum for a person with training and test records"
BY_SITE = "a person may be trained on at one site and held out at another: this is the sum"


def of_run(run: Path, config: Config, data_dir: Path | None = None, say: Say = print) -> dict[str, Any]:
    """Evaluate a run on the persons or records that its configuration holds out."""
    asked, started = config.evaluation, configs.started(Folder(run).config)
    if asked.share is None:
        raise Refused(
            "run.toml has no evaluation.share: nobody was held out",
            'name files that no site trained on: privsgp evaluate RUN "test-{site}.csv" --private',
        )
    before = started.evaluation
    if (config.seed, asked.share, asked.key, config.data) != (started.seed, before.share, before.key, started.data):
        raise Refused(f"{run} was trained with another [data], seed or evaluation.share", "name the run's own run.toml")
    problem = unencoded(config, data_dir, range(config.data.nodes))
    config, held = pooled(config, problem.side(asked, held_out=True))
    refuse_other_side(config, Folder(run).run or "", dict(enumerate(_records(held))))
    return _evaluated(run, config, held, say)


def on_files(run: Path, template: str, changes: Sequence[str], say: Say = print) -> dict[str, Any]:
    """Evaluate a run on files of the sites that no site trained on, "test-{site}.csv"."""
    started = configs.started(Folder(run).config)
    if started.evaluation.share is not None:
        raise Refused(f"{run} holds out a share of its own data", "evaluate it on these: name its run.toml")
    config = started.with_section("data", path=str(Path(template).resolve()), test_path=None, sizes=None)
    config = configs.parse(config.model_dump(), changes, Path())
    if None not in (who := {config.data.person, started.data.person}) and len(who) > 1:
        raise _other_identifier(run, started.data.person, config)
    config, problem = pooled(config, unencoded(config, None, range(config.data.nodes)))
    refuse_trained(config, Folder(run).run or "", _records(problem), say)
    return _evaluated(run, config, problem, say)


def _records(problem: Problem) -> list[Records]:
    return booked.records_of(problem.hashes, problem.dataset, problem.parts)


def _evaluated(run: Path, config: Config, held: Problem, say: Say) -> dict[str, Any]:
    result, folder = load(run), Folder(run)
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
    model, spent = folder.model, result.summary
    if (run / CALIBRATION).exists():
        say(f"{CALIBRATION} is not used: the sum is of the model itself")
    result = dataclasses.replace(of_model(model), summary=spent)  # without calibration.json, which no ε may cover
    config = study(config, held.samples, result, model, folder.run)
    out = sums.next_folder(run, "evaluation")
    also = charged_too(config, range(len(held.parts)))
    total = sums.released(config, held, rows(config, result, held.dataset), out, also, say)
    return written(config, result, model, total, out)


def charged_too(config: Config, nodes: Sequence[int]) -> list[tuple[str, bool, list[Records]]]:
    """Return the trained records that pay for an evaluation, too; `config` is a `study`."""
    if config.seed is not None or why_added(config) is None:
        return []
    return [(booked.TRAINED, True, booked.trained_in(config.sum.run or "", nodes))]


def why_added(config: Config) -> str | None:
    """Say why a person pays for training and for the evaluation; None where it is one of them."""
    if config.data.person is None:
        return BY_RECORD
    return BY_SITE if config.privacy.sites_per_person > 1 else None


def refuse_other_terms(config: Config, result: Result) -> None:
    """Refuse another unit, relation or seed than the model was trained with: no sum or maximum covers both."""
    trained, person = result.card["privacy"], config.data.person
    unit = None if person is None else config.privacy.sites_per_person
    known = trained["relation"], trained["simulation"], trained.get("sites_per_person")
    if (config.privacy.relation, config.seed is not None, unit) != known:
        raise _other_terms()


def _other_terms() -> Refused:
    return Refused(
        "the model was trained under another privacy.relation, seed, data.person or privacy.sites_per_person",
        "evaluate it under the same ones",
    )


def study(config: Config, sizes: Sequence[int], result: Result, model: Path, run: str | None) -> Config:
    """Return the configuration of an evaluation on so many persons or records of each site."""
    refuse_other_terms(config, result)
    asked = config.evaluation
    config = config.with_section("sum", kind="evaluation", run=run, model=digest(model))
    return sums.study(config, sizes, layout(config, result).norm, asked.epsilon, asked.delta)


def agreed_model(run: Path) -> Path:
    """Return the model of a finished run that sites may evaluate together: a function of its counted releases.

    Guarantee: it comes from releases of all sites with a finite ε. So the evaluation reveals nothing more about the
    records of the training.
    """
    result = load(run)
    privacy = result.card["privacy"]
    if not (privacy["simulation"] or (privacy["noise"] and privacy["epsilon"] is not None)):
        raise Refused(f"{run} has no model under a counted budget", "evaluate the model of a private run")
    return best_model(Folder(run), result.summary)


def refuse_other_side(config: Config, run: str, held: Mapping[int, Records]) -> None:
    """Refuse persons or records that are not those which the run has held out: they may have been trained on."""
    if config.seed is not None:
        return
    _refuse_other_unit(config, run)
    book = Book()
    known = book.sets_of({f"{run}/{booked.HELD_OUT}"})
    for node, own in held.items():
        if not any(np.array_equal(book.keyed(own.hashes), one) for one in known.get(node, [])):
            raise Refused(
                f"node {node} holds out other records now than it did in training, or the budget book does not know",
                "put its file back as it was, and evaluate where it was trained",
            )


def _refuse_other_unit(config: Config, run: str) -> None:
    """Refuse another unit or relation than the budget book has of this run, whatever the model's file says."""
    if any(one.run == run and one.relation != booked.relation(config) for one in Book().entries()):
        raise _other_terms()


def refuse_other_run(config: Config, result: Result) -> None:
    """Refuse other persons than in the evaluated run at this site, or a model's file that says it cost less.

    By another identifier, persons that were trained on would look new.
    """
    said, person = result.card["privacy"], config.data.person
    for one in Book().entries():
        if one.run != config.sum.run or config.seed is not None:
            continue
        if one.epsilon is None or one.epsilon > said["epsilon"] or one.delta > said["delta"]:
            what = f"the model's file says that training cost ε = {said['epsilon']}, δ = {said['delta']}"
            raise Refused(f"{what}, and the budget book has {one.epsilon}, {one.delta}", "ask for the model of the run")
        known = None if person is None else configs.started(Folder(Path(one.folder)).config)
        if known is not None and known.data.person != person:
            raise _other_identifier(one.folder, known.data.person, config)
        if known is not None and known.privacy.sites_per_person != config.privacy.sites_per_person:
            raise _other_terms()


def _other_identifier(run: object, person: str | None, config: Config) -> Refused:
    return Refused(f"{run} counts persons by {person!r}, not by {config.data.person!r}", "take the same")


def refuse_trained(config: Config, run: str, held: Sequence[Records], say: Say) -> None:
    """Refuse persons that the run trained on at any node here; report records that are equal to trained ones.

    Records can be equal by chance. So their budgets add up, and equal ones are only reported.
    """
    if config.seed is not None:
        return
    _refuse_other_unit(config, run)
    book = Book()
    sets = [one for sets in book.sets_of({run}).values() for one in sets]
    if not sets:
        raise Refused("the budget book does not know this run", "evaluate where it was trained: only that book knows")
    before = np.concatenate(sets)
    for own in held:
        mine, of_persons = book.keyed(own.hashes), config.data.person is not None
        if any(np.array_equal(mine, one) for one in sets):
            raise Refused("a test file has the records that a site trained on", "take records that no site trained on")
        shared = np.isin(mine[:, -1], before[:, -1]) if of_persons else np.isin(mine, before).any(1)
        if of_persons and shared.any():
            count = len(np.unique(mine[shared, -1]))
            raise Refused(f"the run trained on {count:,} of the persons", "take persons that no site trained on")
        if shared.any():
            say(f"{shared.sum():,} of {len(mine):,} test records equal a trained one: take none that was trained on")


def layout(config: Config, result: Result) -> Layout:
    """Return what the cells mean, from public values alone."""
    asked, card, schema = config.evaluation, result.card, config.data.schema
    times = None if schema is None else schema.times
    survives = card["loss"] == "survival" and times is not None
    if not survives and (card["loss"] not in ("cross-entropy", "binary", "mse") or card["target_shape"]):
        raise Refused("the model's outputs are no classes and no single number", "evaluate it on public data")
    if card["loss"] == "mse":
        if schema is None or asked.subgroups:
            raise Refused(
                "private evaluation of numbers needs a schema, and has no subgroups",
                "give the target a public range, and leave subgroups out",
            )
        low, high = schema.target.limits
        clip = (high - low) / 4 if asked.residual is None else asked.residual
        if not 0 < clip <= high - low:
            raise Refused(
                f"evaluation.residual = {clip:g} is out of the target's range",
                f"take at most {high - low:g}",
            )
        return Residuals(clip, (low + high) / 2, (high - low) / 2)
    columns = [] if schema is None else [description.values_of(schema, name) for name in asked.subgroups]
    if len(columns) < len(asked.subgroups):
        raise Refused(f"evaluation.subgroups: {asked.subgroups[0]!r} needs data.schema", "name the schema")
    groups = Groups(tuple(asked.subgroups), tuple(columns)) if columns else NONE
    if survives and schema is not None and times is not None:
        at = times[len(times) // 2] if asked.time is None else asked.time
        if at not in times:
            raise Refused(f"evaluation.time = {at:g} is no edge of the schema's bins", f"take one of {times}")
        return Risks.of(asked.bins, times, at, groups, repeated=_may_repeat(schema))
    if card["classes"] != 2:
        return Confusion(card["classes"], groups)
    if schema is None:
        return Scores.of(asked.bins, groups=groups)
    share = None if schema.target.balance is None else schema.target.balance[1]
    return Scores.of(asked.bins, groups=groups, repeated=_may_repeat(schema), share=share)


def _may_repeat(schema: Schema) -> bool:
    """Return whether no number of a schema is sure to have many values: its range is wide."""
    widths = [one.limits[1] - one.limits[0] for one in schema.encoded.values() if isinstance(one, Number)]
    return max(widths, default=0) <= _FEW_VALUES


def rows(config: Config, result: Result, dataset: Dataset) -> Array:
    """Return the vector of each row."""
    made, x, schema = layout(config, result), dataset.x, config.data.schema
    if isinstance(made, Residuals):
        centre, scale = (0.0, 1.0) if schema is None else schema.unit
        predicted = np.asarray(result.predict(x), float).reshape(-1)
        return made.rows(predicted, centre + scale * dataset.y.astype(float).reshape(-1))
    number = np.zeros(len(x), np.int64)
    for name, values in zip(made.groups.names, made.groups.values, strict=True):
        assert schema is not None  # noqa: S101
        number = number * len(values) + description.codes(schema, name, dataset)[0]
    if isinstance(made, Risks):
        return made.rows(result.predict(x), dataset.y, number)
    p, y = np.nan_to_num(result.predict_proba(x)), dataset.y.astype(np.int64)
    if isinstance(made, Confusion):
        return made.rows(result.calibration.classes(p), y, number)
    return made.rows(p[:, 1], y, number)


def written(config: Config, result: Result, model: Path, total: Total, folder: Path) -> dict[str, Any]:
    """Write the metrics of a noised histogram."""
    made, sigma = layout(config, result), total.sigma
    found = total.facts | {
        "model": digest(model), "held_out": total.samples, "added": why_added(config),
        "trained": _trained(result, config),
        "metrics": [e._asdict() for e in made.estimates(total.cells, total.count, sigma)],
        "curves": made.curves(total.cells, total.count, sigma) if isinstance(made, Scores | Risks) else {},
    }  # fmt: skip
    if isinstance(made, Scores):  # what `calibrate` needs: post-processing of the released counts
        found["histogram"] = {"edges": list(made.edges), "counts": made.counts(total.cells).tolist()}
    write_json(folder / NAME, found)
    return found | {"folder": str(folder)}


def _trained(result: Result, config: Config) -> dict[str, Any]:
    """Return what training has spent, of the site that has spent most, and how many sites had to be honest."""
    summary = result.summary
    spent, shared = [e for e in summary.get("epsilon_spent") or [] if e is not None], summary.get("pairwise")
    honest = config.honest if result.card["privacy"]["trust"] == "honest sites" else None
    honest = honest if shared is None else shared["honest"]
    return {"epsilon": max(spent, default=None), "delta": max(summary.get("delta") or [0.0]), "honest": honest}


def of_folder(run: Path) -> list[dict[str, Any]]:
    """Return the private evaluations of a run, the first one first; each ε is computed again from the ledgers."""
    paths = sorted(run.glob(f"evaluation-*/{NAME}"), key=lambda path: int(path.parent.name.rpartition("-")[2]))
    return [
        read_json(path, Evaluated) | {"epsilon": max(one.epsilon for one in statements(path.parent))} for path in paths
    ]


def together(evaluations: Sequence[dict[str, Any]]) -> list[str]:
    """Say what several evaluations of a run spend together."""
    n, spent = len(evaluations), [up(sum(one[key] for one in evaluations)) for key in ("epsilon", "delta")]
    line = f"{n} evaluations of this run are {n} releases: together ε = {spent[0]}, δ = {spent[1]}"
    return [f"{line} for each held-out {evaluations[0]['unit']}"] if n > 1 else []


def rows_of(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return metric, group and value of each metric, with its interval, or how many persons would be needed."""
    why = ": too few records, or too many in one bin of evaluation.bins"
    return [
        (
            one["metric"].replace("_", " ").replace("c index", "C-index"),
            one["group"],
            shown(one, ".3f", why, "held-out "),
        )
        for one in found["metrics"]
    ]


def statement(found: dict[str, Any]) -> list[str]:
    """Say what the evaluation spent, on whom, and against which adversary."""
    return views.written("evaluation.txt", found=found)
