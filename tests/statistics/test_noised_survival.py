"""Survival from noised counts: the curves and metrics of the records without noise, and right intervals with it."""

import numpy as np
import pytest

from privsgp import curves
from privsgp.data.survival import decoded, targets
from privsgp.statistics.estimates import Groups
from privsgp.statistics.survival import Risks, Times, codes

pytestmark = pytest.mark.unit
EDGES = (100.0, 200.0, 300.0, 400.0, 500.0, 700.0)
AT = 2  # 300
SEX = Groups(("sex",), (("F", "M"),))


def simulated(n, rng):
    """Return curves of the true model, targets, and a group whose events come later."""
    x, group = rng.normal(size=n), rng.integers(0, 2, n)
    rate = np.exp(0.8 * x - 0.5 * group) / 600
    time, seen = rng.exponential(1 / rate), rng.uniform(50, 900, n)
    y = targets(np.minimum(time, seen), time <= seen, EDGES)
    return np.exp(-rate[:, None] * np.array(EDGES)), y, group


def named(found):
    return {(one.metric, one.group): one for one in found}


def by_hand(time, event):
    """Return the life table in a plain loop."""
    left, survived, found = len(time), 1.0, []
    for k in range(len(EDGES)):
        died = sum(bool(e) and k < t <= k + 1 for t, e in zip(time, event, strict=True))
        last = sum(not e and k <= t < k + 1 for t, e in zip(time, event, strict=True))
        survived *= 1 - died / (left - last / 2)
        found.append(survived)
        left -= died + last
    return found


def test_each_target_is_one_cell():
    y = targets([50, 100, 150, 250, 700, 800, 100], [True, True, False, True, True, True, False], EDGES)
    assert codes(y).tolist() == [0, 0, 7, 2, 5, 12, 7]


def test_curves_are_the_life_table_and_near_kaplan_meier():
    _, y, group = simulated(4000, np.random.default_rng(0))
    column = Times("days", EDGES, SEX)
    rows = column.rows(codes(y), group)
    assert np.linalg.norm(rows, axis=1).max() == column.norm
    found = column.described(rows.sum(0), len(y), 0.0)["estimates"]
    for number, name in enumerate(("sex = F", "sex = M")):
        time, event = (one[group == number] for one in decoded(y))
        told = [one["value"] for one in found if one["group"] == name]
        assert told == pytest.approx(by_hand(time, event), abs=1e-9)
        assert told == pytest.approx(curves.kaplan_meier(time, event, np.arange(1, 7)), abs=0.01)


def test_without_noise_metrics_are_near_those_of_the_records():
    survival, y, group = simulated(20_000, np.random.default_rng(1))
    layout = Risks.of(20, EDGES, 300.0, SEX)
    rows = layout.rows(survival, y, group)
    assert rows.shape[1] == layout.length
    assert np.linalg.norm(rows, axis=1).max() <= layout.norm
    found = named(layout.estimates(rows.sum(0), len(y), 0.0))
    for name, chosen in (("all", group >= 0), ("sex = M", group == 1)):
        (time, event), s = (one[chosen] for one in decoded(y)), survival[chosen, AT]
        observed = curves.kaplan_meier(time, event, [AT + 1])[0]
        assert found["c_index", name].value == pytest.approx(curves.concordance(time, event, -s), abs=0.004)
        assert found["brier at 300", name].value == pytest.approx(curves.brier(s, time, event, AT + 1), abs=0.003)
        assert found["survival at 300", name].value == pytest.approx(observed, abs=0.005)
        assert found["predicted survival at 300", name].value == pytest.approx(s.mean(), abs=1e-9)
        assert found["calibration in the large at 300", name].value == pytest.approx(s.mean() - observed, abs=0.005)
    told = layout.curves(rows.sum(0), len(y), 0.0)
    risk, (time, event) = 1 - survival[:, AT], decoded(y)
    for one in told["calibration"][4:14]:
        inside = (one["from"] <= risk) & (risk < one["to"])
        expected = 1 - curves.kaplan_meier(time[inside], event[inside], [AT + 1])[0]
        assert one["value"] == pytest.approx(expected, abs=0.02)
    assert [one["time"] for one in told["survival"]] == list(EDGES)


def test_intervals_are_right_as_often_as_they_say():
    rng, layout, column = np.random.default_rng(2), Risks.of(10, EDGES, 300.0), Times("days", EDGES)
    sigma, n, runs, many = 8.0, 3000, 150, 30_000
    survival, y, _ = simulated(many, rng)
    time, event = decoded(y)
    exact = layout.estimates(layout.rows(survival, y, np.zeros(many, int)).sum(0), many, 0.0)
    truth = {one.metric: one.value for one in exact}
    truth["c_index"] = curves.concordance(time, event, -survival[:, AT])
    km = curves.kaplan_meier(time, event, np.arange(1, 7))
    hits, curve = dict.fromkeys(truth, 0), 0
    for _ in range(runs):
        survival, y, _ = simulated(n, rng)
        none = np.zeros(n, int)
        cells = layout.rows(survival, y, none).sum(0)
        for one in layout.estimates(cells + rng.normal(0, sigma, cells.shape), n, sigma):
            assert one.value is not None
            hits[one.metric] += one.low <= truth[one.metric] <= one.high
        cells = column.rows(codes(y), none).sum(0)
        told = column.described(cells + rng.normal(0, sigma, cells.shape), n, sigma)["estimates"]
        curve += sum(one["low"] <= k <= one["high"] for one, k in zip(told, km, strict=True))
    assert all(0.89 <= count / runs <= 0.995 for count in hits.values()), hits
    assert 0.9 <= curve / runs / 6 <= 0.99


def test_noise_without_persons_shows_nothing():
    rng, layout = np.random.default_rng(3), Risks.of(10, EDGES, 300.0)
    survival, y, _ = simulated(60, rng)
    cells = layout.rows(survival, y, np.zeros(60, int)).sum(0) + rng.normal(0, 20.0, layout.length)
    found = layout.estimates(cells, 60, 20.0)
    assert not any(one.value for one in found)
    assert all(one.persons_needed is None or 60 < one.persons_needed <= 1e9 for one in found)
