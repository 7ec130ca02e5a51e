"""Was it worth it? Compare the joint model with a model of one site's own records, on that site's held-out records.

All of it stays at the site: no ε covers these numbers, and the model of the site's own records has no noise.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privsgp import metrics as measures
from privsgp.accounting.book import Book
from privsgp.data import tables
from privsgp.data.hashes import hashes
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.files import write_private
from privsgp.models import per_sample
from privsgp.runs.rows import labelled_rows, schema_of, times_of, unit_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from privsgp.data.hashes import Hashes
    from privsgp.runs.result import Result

NAME = "worth.json"
_SHOWN = (
    "log_loss", "brier", "auc", "accuracy", "balanced_accuracy", "rmse", "mae", "r2", "c_index", "survival_brier",
)  # fmt: skip


def compare(result: Result, held_out: Path, own: Path) -> dict[str, Any]:
    """Return metrics of both models on a site's held-out records, and the answer; private/worth.json keeps them.

    The other model is scikit-learn's logistic or ridge regression on the encoded records; of survival, of hazards.

    Args:
        result: A finished run.
        held_out: Records of this site that the run was not trained on.
        own: The records with which this site took part.

    Raises:
        Refused: If the run, or the site's own file, has a held-out record.

    """
    card = result.card
    if card["loss"] is None:
        raise Refused("the model has its own loss", "compare models of classes, numbers or survival")
    _refuse_trained_on(result, held_out, own)
    (x, y), (x_test, y_test) = labelled_rows(own, card), labelled_rows(held_out, card)
    kind: measures.Kind = card["loss"] if card["loss"] in ("mse", "survival") else "cross-entropy"
    targets = torch.from_numpy(y_test)
    own_outputs = learnt_alone(kind, x.reshape(len(x), -1), y, x_test.reshape(len(x_test), -1), card["classes"])
    alone, outputs = torch.from_numpy(own_outputs), result.outputs(x_test)
    if kind == "cross-entropy":  # by calibration.json, if the run has it
        outputs = torch.from_numpy(np.log(np.maximum(result.predict_proba(x_test), 1e-12)))
    measure = measures.Measure(kind, card["classes"], unit=unit_of(card), times=times_of(card))
    joint, measured, loss = result.evaluate(held_out), measure(alone, targets), per_sample(kind)
    gain = (loss(alone, targets) - loss(outputs, targets)).double().numpy()
    compared = {name: {"joint": joint[name], "alone": measured[name]} for name in _SHOWN if name in joint}
    found = {"held_out": len(y_test), "own": len(y), "metrics": compared, "answer": _answer(gain, len(y))}
    private = result.folder / "private"
    private.mkdir(mode=0o700, exist_ok=True)
    write_private(private / NAME, json.dumps(found).encode())
    return found


def _answer(gain: NDArray[np.float64], own: int) -> str:
    """Return one sentence: which model has the smaller loss, if the held-out records can tell."""
    mean, error = float(gain.mean()), float(gain.std() / np.sqrt(len(gain)))
    other = f"a model of this site's {own:,} records alone"
    if abs(mean) <= 2 * error:
        return f"{len(gain):,} held-out records cannot tell the joint model from {other}."
    better = "Taking part was worth it: the joint model predicts better than"
    worse = "Taking part was not worth it for these records: the joint model predicts worse than"
    return f"{better if mean > 0 else worse} {other}."


def loss_alone(
    kind: measures.Kind, x: NDArray[np.float32], y: NDArray[Any], x_test: NDArray[np.float32], y_test: NDArray[Any],
    classes: int | None = None,
) -> float:  # fmt: skip
    """Return the test loss of a model of these records without noise."""
    outputs = torch.from_numpy(learnt_alone(kind, x, y, x_test, classes))
    return float(per_sample(kind)(outputs, torch.from_numpy(y_test)).mean())


def learnt_alone(
    kind: measures.Kind, x: NDArray[np.float32], y: NDArray[Any], x_test: NDArray[np.float32], classes: int | None
) -> NDArray[np.float64]:
    """Return values, log p of each class, or log odds of the event in each bin, by a model of these records."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if kind == "mse":
        return np.asarray(Ridge().fit(x, y).predict(x_test).reshape(len(x_test), -1), np.float64)
    if kind == "survival":  # a logistic regression of persons by bins at risk
        bins = np.eye(y.shape[1], dtype=np.float32)
        person, interval = np.nonzero((y < 0) | (y >= 0.5))
        rows = np.concatenate([x[person], bins[interval]], 1)
        rows = np.concatenate([rows, np.zeros_like(rows, shape=(2, rows.shape[1]))])
        events = np.append(y[person, interval] < 0, [False, True])  # a site may have no event at all
        every = np.concatenate([np.repeat(x_test, len(bins), 0), np.tile(bins, (len(x_test), 1))], 1)
        odds = LogisticRegression(max_iter=1000).fit(rows, events).decision_function(every)
        return np.asarray(odds.reshape(len(x_test), -1), np.float64)
    if len(np.unique(y)) < 2:
        raise Refused("this site's own records have one class", "a model cannot be trained on them alone")
    model = LogisticRegression(max_iter=1000).fit(x, y)
    p = np.full((len(x_test), classes or 0), 1e-12)
    p[:, model.classes_] = np.maximum(model.predict_proba(x_test), 1e-12)
    return np.asarray(np.log(p))


def _refuse_trained_on(result: Result, held_out: Path, own: Path) -> None:
    """Refuse held-out records that are in the run, by the budget book, or in the site's own file."""
    book, rows, mine = Book(), _hashes(held_out, result), _hashes(own, result)
    sets = [one for found in book.sets_of({Folder(result.folder).run or ""}).values() for one in found]
    if not sets and not result.summary["simulation"]:
        what = "the budget book does not know the run's records, so held-out records cannot be told from them"
        raise Refused(what, "compare at the machine and with the user that took part")
    column = 1 if tables.is_table(held_out.name) else 0  # of a table: rows as they are in the file
    known = np.isin(book.keyed(rows)[:, 0], np.concatenate([one[:, column] for one in sets])) if sets else np.zeros(1)
    if count := max(int(known.sum()), int(np.isin(rows, mine).sum())):
        raise Refused(
            f"{held_out}: {count:,} of its records are in the run, or in {own}",
            "hold out records with which this site did not take part",
        )


def _hashes(path: Path, result: Result) -> Hashes:
    if tables.is_table(path.name):
        rows = tables.read(path, schema_of(result.card)).rows
        return np.empty(0, np.uint64) if rows is None else rows[:, 0].copy()
    x, _ = labelled_rows(path, result.card)
    return hashes(x, tokens=isinstance(result.card.get("vocabulary"), int))
