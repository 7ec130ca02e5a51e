"""What sums in float64 may round by is covered by κ, or the run is refused before it begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runs
from privsgp.algorithms import ALGORITHMS
from privsgp.engine import spec
from privsgp.engine.spec import rounding_error
from settings import settings_of

EPS, COUNTS = 2.0**-53, st.integers(1, 10**6)


def _mechanism(algorithm, *, samples=1000, **settings):
    return ALGORITHMS[algorithm].mechanism(
        settings_of(algorithm, **settings), sigma=1.0, batch=1, samples=samples, kappa=2.0**-12
    )


def test_each_kind_of_sum_is_counted():
    def share(algorithm, places=1, **settings):
        return rounding_error(_mechanism(algorithm, **settings), 100, steps=70, places=places) / EPS

    batch, table = 4 * (100**2 + 100), 4 * (64 * 1000 + 1000**2 / 64)
    assert share("privsgp") == pytest.approx(batch)
    assert share("privsgp", places=9) == pytest.approx(4 * (2**8 * 9 * 100**2 + 100))
    assert share("privsgp-vr") == share("privsgp-sag") == pytest.approx(batch + table + 2 * 70 * 1000)
    assert share("ldp-svrg") == pytest.approx(4 * (100 * 1000 + 1000**2 / 100))  # the anchor, a pass of 100 at a time


@given(st.sampled_from(["privsgp", "privsgp-vr", "ldp-spider"]), COUNTS, COUNTS, st.integers(1, 4096), COUNTS)
def test_more_of_anything_never_rounds_less(algorithm, slots, samples, places, steps):
    def share(samples=samples, slots=slots, places=places, steps=steps):
        m = _mechanism(algorithm, samples=samples)
        return rounding_error(m, min(slots, samples), steps=steps, places=places)

    assert share() <= min(share(places=2 * places), share(steps=2 * steps), share(samples=2 * samples))
    assert share() <= share(samples=2 * samples, slots=2 * slots) * (1 + 1e-12)


def test_a_secret_run_whose_sums_kappa_does_not_cover_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(spec.Learning, "places", 4096)
    monkeypatch.setattr(spec, "capacity", lambda *_, **_more: 4096)
    unseeded = "--set=seed="
    ran = runs.command("train", runs.small(tmp_path), "--out", tmp_path / "secret", unseeded)
    assert ran.code == 2
    assert (
        "sums of 4,096 gradients of layers at 4,096 positions, 30 steps and 300 samples may round by 0.007" in ran.err
    )
    assert "take a smaller algorithm.batch" in ran.err
    assert not (tmp_path / "secret").exists()
    runs.train(runs.small(tmp_path), tmp_path / "simulated")
    runs.train(runs.small(tmp_path), tmp_path / "not private", unseeded, *runs.changes(algorithm__name="sgp"))
