"""Noise that pairs of sites share: the simulated bytes, secrets that only two have, and no number for two messages."""

from __future__ import annotations

import numpy as np
import pytest
from consortium import PATIENCE
from oracle import lockstep, replayed

from privsgp import data
from privsgp.sites.study import Limits

SHARED = {"noise": "pairwise", "honest": 2, "sigma": 0.05}


def test_undisturbed_a_run_is_the_simulated_one_to_the_last_bit(consortium):
    c = consortium(seed=3, closed=(2,), privacy=SHARED, algorithm={"name": "privsgp-vr"})
    c.start()
    summaries = c.end()
    z, w = lockstep(c)
    for i, summary in enumerate(summaries):
        np.testing.assert_array_equal(c.model(i), z[i])
        assert summary["site"]["w"] == w[i]
        assert summary["trust"] == "honest sites"
        assert c.ledger(i).header.mechanism["honest"] == summary["pairwise"]["honest"] == 2
        assert summary["pairwise"]["node"] == i


def test_killed_and_restarted_a_replay_gives_the_same_bytes(consortium):
    c = consortium(
        seed=11, limits=Limits(deadline=1.0, staleness=6), privacy=SHARED, algorithm={"steps": 30, "final_mixing": 8}
    )
    c.start(loss=0.2)
    c.until_step(1, 8)
    c.kill(1)
    c.until_step(0, 12)
    c.start(1, loss=0.2)
    summaries = c.end()
    z, w = replayed(c)
    for i, summary in enumerate(summaries):
        np.testing.assert_array_equal(c.model(i), z[i])
        assert summary["site"]["w"] == w[i]
        assert summary["releases"][i] == 30 == c.ledger(i).charged == c.sent(i)


LOUD = {"noise": "pairwise", "honest": 3, "sigma": 100.0}  # it drowns all else


def length_in_sigmas(c, steps, step_size=0.5):
    """Return the length of the average model, in what own noise alone would make of it."""
    models, n = np.stack([c.model(i) for i in range(len(c.sites))]), len(c.sites)
    own = c.agreement.values["shared_noise"]["own"]
    left = step_size * np.sqrt(steps * sum(own) / n**2)
    return np.sqrt(np.mean(models.mean(0) ** 2)) / left


@pytest.mark.parametrize(("moments", "net"), [(3, {}), (17, {"closed": (1, 2), "relay": "rented"})])
def test_secret_noise_cancels_also_where_a_site_is_killed_at_some_moment(consortium, moments, net):
    """1 where all that is shared cancels; pairs that did not would make it 1.7. Keys may come by way of a relay."""
    c = consortium(
        limits=Limits(deadline=1.0, staleness=4), privacy=LOUD, algorithm={"steps": 12, "final_mixing": 12}, **net
    )
    if net:
        c.start_relay()
    c.start(0, 2)
    c.start(1, moments=moments)
    key = c.out(0) / "private" / "pair.key"
    c.until_step(0, 0)
    assert key.exists()
    assert key.stat().st_mode & 0o777 == 0o600
    c.processes[1].join(PATIENCE)
    assert c.processes[1].exitcode == -9, c.log(1)
    c.start(1)
    for i, summary in enumerate(c.end()):
        assert summary["releases"][i] == 12 == c.ledger(i).charged == c.sent(i)
        assert not c.audited(i)
        assert not (c.out(i) / "private" / "pair.key").exists()  # what was hidden stays hidden
    assert length_in_sigmas(c, 12) == pytest.approx(1.0, rel=0.15)


def test_a_site_that_leaves_takes_its_halves_along_and_changes_nobodys_epsilon(consortium):
    """From then on what three others share with it stays in their average: 3 (D + s²) of a step instead of 4 D."""
    c = consortium(
        sizes=(100, 110, 120, 130), limits=Limits(deadline=1.0, staleness=20), privacy=LOUD | {"honest": 4},
        algorithm={"steps": 24, "final_mixing": 8},
    )  # fmt: skip
    c.start()
    c.until_step(3, 4)
    (c.out(3) / "private" / "leaving").touch()
    c.processes[3].join(PATIENCE)
    assert c.processes[3].exitcode == 130, c.log(3)
    assert not (c.out(3) / "private" / "pair.key").exists()
    summaries = c.end(0, 1, 2)
    left = c.sent(3)  # steps in which all four took part
    shared = c.agreement.values["shared_noise"]
    D, s2 = shared["own"][0], shared["pair"]
    weight = sum(summary["site"]["w"] for summary in summaries)  # of 4; it took along what it had kept
    expected = 0.5 * np.sqrt(left * D / 4 + (24 - left) * 3 * (D + s2) / weight**2)
    measured = np.sqrt(np.mean(np.stack([c.model(i) for i in range(3)]).mean(0) ** 2))
    assert measured == pytest.approx(expected, rel=0.15)
    for i, summary in enumerate(summaries):
        spec = c.agreement.spec(data.load(str(c.files[i]), classes=10), i)
        assert c.ledger(i).header.mechanism == spec.protection.mechanisms[i].describe()
        assert c.ledger(i).charged == 24
        assert summary["epsilon_spent"][i] == spec.protection.epsilon(i, 24)


def test_a_site_that_restarts_while_all_mix_needs_its_key_no_more(consortium):
    c = consortium(limits=Limits(deadline=1.0, staleness=30), privacy=LOUD, algorithm={"steps": 4, "final_mixing": 60})
    c.start()
    c.until_step(1, 6)
    c.kill(1)
    assert not (c.out(1) / "private" / "pair.key").exists()
    c.start(1)
    for i, summary in enumerate(c.end()):
        assert summary["releases"][i] == 4 == c.ledger(i).charged == c.sent(i)
    assert length_in_sigmas(c, 4) == pytest.approx(1.0, rel=0.15)


def test_a_run_that_cannot_continue_keeps_no_key(consortium):
    c = consortium(
        limits=Limits(deadline=1.0, staleness=4, fewest=3), privacy=LOUD, algorithm={"steps": 3000, "final_mixing": 2}
    )
    c.start()
    c.until_step(2, 2)
    keys = [c.out(i) / "private" / "pair.key" for i in range(3)]
    assert all(key.exists() for key in keys)
    assert c.ask_to_stop(1) == 130
    assert keys[1].exists()  # it may continue
    c.start(1)
    c.until_step(1, max(c.taken(1)) + 1)
    (c.out(2) / "private" / "leaving").touch()
    for i in range(3):
        c.processes[i].join(PATIENCE)
    assert [c.processes[i].exitcode for i in range(3)] == [2, 2, 130], c.told()
    assert not any(key.exists() for key in keys)
