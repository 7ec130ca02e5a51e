"""Three sites, three processes: undisturbed, killed and restarted, closed, leaving, restored from a backup."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import lockstep

from privsgp.sites.agreement import Limits


def test_undisturbed_a_run_of_sites_is_the_simulated_one_to_the_last_bit(consortium, tmp_path):
    c = consortium(seed=3, closed=(2,))
    c.start()
    summaries = c.end()
    z, w = lockstep(c)
    for i, summary in enumerate(summaries):
        assert summary["releases"][i] == 20 == c.ledger(i).charged == c.sent(i)
        np.testing.assert_array_equal(c.model(i), z[i])
        assert summary["site"]["w"] == w[i]
        assert not c.audited(i)


def test_killed_and_restarted_nobody_is_charged_twice(consortium):
    c = consortium(limits=Limits(deadline=1.0, staleness=6), algorithm={"steps": 40, "final_mixing": 12})
    c.start()
    c.until_step(1, 8)
    c.kill(1)
    c.until_step(0, 12)
    c.start(1)
    summaries = c.end()
    for i, summary in enumerate(summaries):
        assert summary["releases"][i] == 40 == c.ledger(i).charged == c.sent(i)
        assert summary["site"]["w"] > 0
        assert not c.audited(i)
    assert summaries[1]["site"]["incarnation"] == 2
    assert sum(s["site"]["w"] for s in summaries) == pytest.approx(3, abs=1e-9)
    models = np.stack([c.model(i) for i in range(3)])
    assert np.abs(models - models.mean(0)).max() < 0.05 * np.abs(models).max()
