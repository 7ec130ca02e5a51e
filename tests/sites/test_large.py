"""Messages of 11 million weights, and a table that is larger than a commit could write at each step."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import lockstep, replayed

from privsgp.sites.study import Limits


@pytest.mark.slow
def test_eleven_million_weights_travel_as_float32_and_to_the_last_bit(consortium):
    c = consortium(
        seed=3, sizes=(20, 20), limits=Limits(deadline=60.0), model={"name": "mlp", "hidden": 147_000},
        algorithm={"steps": 3, "final_mixing": 1, "batch": 4},
    )  # fmt: skip
    assert 11e6 < c.agreement.weights < 11.1e6
    c.start()
    summaries = c.end(seconds=300.0)
    z, _ = lockstep(c)
    for i, summary in enumerate(summaries):
        assert not c.audited(i)
        np.testing.assert_array_equal(c.model(i), z[i])
        count, size = summary["site"]["messages"]["posted"], c.agreement.message_bytes
        # 88 MB each; the last may be on its way
        assert (count - 1) * size < summary["bytes_sent"] < count * (size + 400)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["privsgp-sag", "privsgp-vr"])
def test_a_table_of_300_megabytes_survives_a_kill_to_the_last_bit(consortium, algorithm):
    c = consortium(
        seed=3, sizes=(100, 100), limits=Limits(deadline=20.0), model={"name": "mlp", "hidden": 10_000},
        algorithm={"name": algorithm, "table": "dense", "steps": 8, "final_mixing": 1, "batch": 2},
    )  # fmt: skip
    assert 4 * 100 * c.agreement.weights > 256 << 20
    c.start()
    c.until_step(1, 3, seconds=120.0)
    c.kill(1)
    c.start(1)
    summaries = c.end(seconds=300.0)
    z, w = replayed(c)
    for i, summary in enumerate(summaries):
        assert summary["releases"][i] == 8 == c.ledger(i).charged == c.sent(i)
        np.testing.assert_array_equal(c.model(i), z[i])
        assert summary["site"]["w"] == w[i]
