"""What a run draws: each node from its own rows, and what was drawn ahead is what would be drawn anyway."""

from __future__ import annotations

import tomllib

import pytest
import torch

import runs
from privsgp.engine.drawing import Drawing
from privsgp.runs import build as jobs
from privsgp.runs import config as configs
from privsgp.runs import problem as problems

SIZES = [300, 40, 7, 1]


def _drawing(*, alone=True):
    values = tomllib.loads(runs.SMALL)
    values["data"]["sizes"], values["algorithm"]["batch"] = SIZES, 40
    config = configs.parse(values)
    return Drawing(jobs.prepare(config, problems.load_problem(config)), torch.zeros(4, 650), alone=alone)


def _step(drawing, k):
    passes, g = drawing.sample(k), torch.zeros(4, 650)
    drawing.noise(k, g)
    return [rows for rows, _ in passes], g


def test_unequal_nodes_draw_from_their_own_rows_only():
    drawing = _drawing()
    for k in range(20):
        for rows, mask in drawing.sample(k):
            assert ((rows < torch.tensor(SIZES)[:, None]) | ~mask).all()
            assert (rows[~mask] == 300).all()


@pytest.mark.parametrize("attempt", [0, 1])
def test_what_was_drawn_meanwhile_is_of_its_step_and_attempt_alone(attempt):
    ahead, plain = _drawing(alone=False), _drawing()
    ahead.meanwhile(2)  # at attempt 0
    ahead.attempt = plain.attempt = attempt
    for k in (3, 3, 4):
        rows, g = _step(ahead, k)
        wanted, noise = _step(plain, k)
        assert all(torch.equal(a, b) for a, b in zip(rows, wanted, strict=True))
        assert torch.equal(g, noise)
