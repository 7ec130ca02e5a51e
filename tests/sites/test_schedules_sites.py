"""Schedules of clip and noise between sites: all sign them, each counts its own, and the run is the simulated one."""

from __future__ import annotations

import numpy as np
import pytest
from consortium import Consortium
from oracle import lockstep

from privsgp import data
from privsgp.errors import Refused
from privsgp.sites.agreement import Agreement

CLIP = {"schedule": "steps", "start": 1.0, "end": 0.2}
PLANNED = {"clip": CLIP, "noise_schedule": "optimal"}


def test_sites_with_a_schedule_are_the_simulated_run_and_their_ledgers_hold_it(consortium):
    c = consortium(seed=3, privacy=PLANNED, algorithm={"steps": 8})
    c.start()
    summaries = c.end()
    z, _ = lockstep(c)
    for i, summary in enumerate(summaries):
        np.testing.assert_array_equal(c.model(i), z[i])
        assert c.ledger(i).header.mechanism["schedule"]["spare"] == 0
        assert len(summary["schedule"]["stretches"]) == 4


def test_a_site_makes_the_schedule_itself_and_signs_no_other(tmp_path):
    budgets = {"sigma": None, "epsilon": [2.0, 3.0, 4.0]}
    c = Consortium.make(tmp_path / "c", privacy=PLANNED | budgets, algorithm={"steps": 5})
    mine = data.load(str(c.files[0]), classes=10)
    mechanism = c.agreement.spec(mine, 0).protection.mechanisms[0]
    assert mechanism.schedule is not None
    assert mechanism.schedule.clips
    values = c.agreement.values
    before = values["config"]["privacy"]
    privacy = before | {"clip": before["clip"] | {"end": 0.9}}
    with pytest.raises(Refused, match="nothing was signed"):
        Agreement.of(values | {"config": values["config"] | {"privacy": privacy}}, "it").spec(mine, 0)
