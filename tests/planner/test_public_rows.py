"""How well a few public rows predict their target, and which signals are plausible for them."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import LeaveOneOut, cross_val_predict

from privsgp.data import schema as schemas
from privsgp.planner import public_rows, stand_in

COLUMNS = """
[columns]
age = { type = "number", range = [0, 100], centre = 50, scale = 15 }
dose = { type = "number", range = [0, 1] }
sex = { type = "category", values = ["F", "M"] }
"""
CLASSES = schemas.parse(tomllib.loads('[target]\ncolumn = "ill"\nclasses = ["no", "yes"]\n' + COLUMNS))
NUMBER = schemas.parse(tomllib.loads('[target]\ncolumn = "days"\nrange = [0, 100]\n' + COLUMNS))


def rows(schema, strength, count, seed):
    made = stand_in.table(schema, stand_in.Signal("", strength), samples=count // 5, seed=seed)
    return torch.cat([made.x, made.x_test]).double().numpy(), torch.cat([made.y, made.y_test]).numpy()


@pytest.mark.parametrize("schema", [CLASSES, NUMBER])
def test_the_quality_is_that_of_models_that_never_saw_the_row(schema):
    x, y = rows(schema, 2.0, 60, 0)
    scaled = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    ridge = Ridge(public_rows.PENALTY * len(x), fit_intercept=False)
    centred = y - y.mean()
    # Every row stays in the mean: only the regression leaves it out.
    predicted = cross_val_predict(ridge, scaled, centred, cv=LeaveOneOut()) + y.mean()
    wanted = r2_score(y, predicted) if schema.classes is None else roc_auc_score(y, predicted)
    assert public_rows.quality(x, y, schema.classes) == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize("schema", [CLASSES, NUMBER])
def test_the_plausible_signals_contain_the_true_one(schema):
    held, least, most = 0, [], []
    for strength in (0.5, 3.0):
        for seed in range(8):
            low, middle, high, easy = public_rows.signals(schema, *rows(schema, strength, 150, 100 + seed))
            assert low.strength <= middle.strength <= high.strength
            assert easy.leading
            held += low.strength <= strength <= high.strength
            (least if strength < 1 else most).append((low.strength, high.strength))
    assert held >= 14
    assert np.mean([high for _, high in least]) < 2.5
    assert np.mean([low for low, _ in most]) > 1


def test_rows_of_one_class_say_nothing():
    x, _ = rows(CLASSES, 1.0, 60, 0)
    assert public_rows.quality(x, np.zeros(60, np.int64), 2) == 0.5
