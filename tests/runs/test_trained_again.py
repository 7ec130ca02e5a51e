"""A private run starts from no model that an earlier run learnt: on the same records it would spend uncounted."""

from __future__ import annotations

import pytest
from torch import nn

import privsgp
from privsgp import data
from privsgp.errors import Refused

PRIVATE = {"privacy": {"epsilon": 1.0}, "algorithm": {"name": "privsgp-sag", "steps": 3}}
SIMULATED = {"privacy": {"sigma": 0.1}, "algorithm": {"name": "privsgp-sag", "steps": 3}, "seed": 1}


def train(model, out, **more):
    return privsgp.train(model, data.load("digits"), out=out, nodes=2, graph="complete", **more)


def test_a_private_run_refuses_a_model_that_a_run_returned(tmp_path):
    first = train(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), tmp_path / "first", **SIMULATED)
    loaded = privsgp.load(tmp_path / "first", nn.Sequential(nn.Flatten(), nn.Linear(64, 10))).model
    around = nn.Sequential(first.model[1], nn.Tanh())
    new = nn.Linear(10, 10)
    for model, more in ((first.model, {}), (loaded, {}), (nn.Sequential(around, new), {}), (new, {"features": around})):
        with pytest.raises(Refused, match=r"weights that the run in .*first learnt"):
            train(model, tmp_path / "on", **PRIVATE, **more)
    assert not (tmp_path / "on").exists()
    again = train(first.model, tmp_path / "again", **SIMULATED)
    assert again.summary["simulation"]
