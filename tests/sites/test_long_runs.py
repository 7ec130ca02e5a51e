"""Long runs, for `make test-faults`: fifty kills in one run, eight sites, a wire that is cut for minutes.

`PRIVSGP_CUT` is seconds: a minute unless set. `make soak` disturbs sites for hours.
"""

from __future__ import annotations

import os
import random
import time

import numpy as np
import pytest
from oracle import lockstep, replayed
from test_bad_networks import MIXING, agree, counted
from wires import Wires

from privsgp import data
from privsgp.sites.study import Limits

pytestmark = pytest.mark.slow


def accuracy(c, model):
    """Return the share of test samples that a logistic model, bias before weight, gets right."""
    d = data.load(str(c.files[0]), classes=10)
    bias, weight = model[:10], model[10:].reshape(10, -1)
    return float((np.argmax(d.x_test.reshape(len(d.x_test), -1) @ weight.T + bias, 1) == d.y_test).mean())


def compared(c):
    """Check every site's model against the same run in one process: within a point, and not far apart."""
    z, _ = lockstep(c)
    one, models = accuracy(c, z.mean(0)), np.stack([c.model(i) for i in range(len(c.sites))])
    reached = [accuracy(c, model) for model in models]
    apart = np.abs(models - models.mean(0)).max() / np.abs(models).max()
    away = np.linalg.norm(models.mean(0) - z.mean(0)) / np.linalg.norm(z.mean(0))
    print(f"one process {one:.4f}, sites {np.round(reached, 4)}, apart {apart:.2e}, away {away:.2e}")
    assert all(abs(each - one) <= 0.01 for each in reached), (one, reached)
    assert apart < 0.02


@pytest.mark.parametrize(("local", "bits"), [(1, 32), (4, 4)])
def test_fifty_kills_in_one_run(consortium, local, bits):
    """Forty times one site, five times two at once; the others go on, and nobody is charged twice."""
    rng, steps = random.Random(1), 600 * local
    c = consortium(
        seed=4,
        limits=Limits(deadline=0.5, staleness=6 * local),
        algorithm={"steps": steps, "final_mixing": 20, "step_size": 0.2 / local, "local_steps": local},
        transport={"bits": bits},
    )
    c.start()
    for count in rng.sample([1] * 40 + [2] * 5, 45):
        victims = rng.sample(range(3), count)
        for i in victims:
            c.until_step(i, max(c.taken(i), default=-1) + 1)
        time.sleep(rng.uniform(0.0, 0.06))
        for i in victims:
            assert c.processes[i].exitcode is None, c.log(i)
            c.kill(i)
        time.sleep(rng.uniform(0.0, 0.3))
        c.start(*victims)
    print("killed fifty times by step", max(c.taken(0)))
    summaries = c.end(seconds=300)
    assert sum(one["site"]["incarnation"] - 1 for one in summaries) == 50
    counted(c, releases=steps)
    z, w = replayed(c)
    for i, one in enumerate(summaries):
        np.testing.assert_array_equal(c.model(i), z[i])
        assert one["site"]["w"] == w[i] > 0
    if bits == 32:
        compared(c)


@pytest.mark.parametrize("sites", [3, 8])
def test_as_accurate_as_one_process(consortium, sites):
    """Some messages are lost, and one site is killed in the middle."""
    steps = 150
    c = consortium(
        seed=2, sizes=[400 // sites * 3] * sites, limits=Limits(deadline=2.0, staleness=10),
        privacy={"epsilon": 5.0, "sigma": None}, algorithm={"steps": steps, "final_mixing": 20, "step_size": 0.2},
    )  # fmt: skip
    c.start(loss=0.1, twice=0.03, late=0.03)
    c.until_step(sites - 1, 40, seconds=120)
    c.kill(sites - 1)
    c.start(sites - 1)
    for i, one in enumerate(c.end(seconds=500)):
        assert one["epsilon_spent"][i] <= 5.0
    counted(c, releases=steps)
    compared(c)


def test_a_wire_that_is_cut_for_minutes(consortium):
    with Wires(3) as wires:
        c = consortium(wires=wires, limits=Limits(deadline=0.5, staleness=6), algorithm=MIXING)
        c.start()
        c.until_step(0, 2)
        for other in (0, 2):
            wires.cut(1, other)
        time.sleep(float(os.environ.get("PRIVSGP_CUT", "60")))
        before, began = max(c.taken(1)), time.monotonic()
        for other in (0, 2):
            wires.mend(1, other)
        c.until_step(1, before + 1, seconds=120)
        print(f"went on {time.monotonic() - began:.1f} s after it was mended")
        c.end(seconds=120)
    counted(c)
    agree(c)
