"""`train` keeps policy.toml as `join` does, and the budget book counts what ε rests on, not what it was called."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import privsgp
from privsgp.accounting.book import Book
from privsgp.errors import Refused

PLAIN = {"epsilon": 3.0}


@pytest.fixture
def train(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVSGP_SITE", str(tmp_path / "site"))
    (tmp_path / "site").mkdir()
    x = np.random.default_rng(0).standard_normal((90, 5)).astype(np.float32)

    def run(policy, privacy, name="privsgp", **more):
        (tmp_path / "site" / "policy.toml").write_text(policy)
        settings = {"algorithm": {"name": name, "batch": 4, "steps": 20, "step_size": 0.1}, "privacy": privacy}
        data = x, (x[:, 0] > 0).astype(np.int64)
        out = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
        return privsgp.train(
            torch.nn.Linear(5, 2), data, out=out, nodes=3, classes=2, progress=False, **settings, **more
        )

    return run


@pytest.mark.parametrize(
    ("policy", "name", "privacy", "what"),
    [
        ('algorithms = ["privsgp"]', "privsgp-sag", PLAIN, "algorithms = "),
        ("weights = 11", "privsgp", PLAIN, "weights = 11, and the model has 12"),
        ("honest = 1", "privsgp", PLAIN | {"noise": "pairwise", "honest": 2}, "holds if 2 sites are honest"),
        ("epsilon_run = 9", "privsgp", PLAIN | {"noise": "pairwise", "honest": 2}, "honest = 1"),
        ("epsilon_run = 1", "sgp", {}, "no finite ε"),
        ("epsilon_run = 1", "privsgp-vr", {"epsilon": 1.0, "accountant": "published"}, "epsilon_run = 1"),
    ],
)
def test_a_policy_refuses(train, policy, name, privacy, what):
    """Found: `train` read budgets alone, and took a paper's ε for one that holds."""
    with pytest.raises(Refused, match=what):
        train(policy, privacy, name)
    assert not Book().entries()


def test_a_policy_lets_through_what_it_allows(train):
    train('algorithms = ["privsgp"]\nweights = 12\nhonest = 2', PLAIN | {"noise": "pairwise", "honest": 2})
    assert len(Book().entries()) == 3


def test_the_book_has_the_epsilon_that_holds(train):
    train("", {"epsilon": 1.0, "accountant": "published"}, "privsgp-vr")
    assert all(entry.epsilon > 1.01 for entry in Book().entries())


def test_a_run_without_noise_makes_the_sum_infinite(train):
    train("", {}, "sgp", seed=1)
    assert not any(math.isinf(total.spent.epsilon) for total in Book().data_sets())
    train("", {}, "sgp")
    assert [total.spent.epsilon for total in Book().data_sets()] == [math.inf] * 3


def test_a_record_cannot_end_a_run_by_a_switch_of_the_caller(train):
    """Found: with anomaly detection one record whose gradient is not finite ended the run."""
    with torch.autograd.set_detect_anomaly(mode=True), pytest.raises(Refused, match="set_detect_anomaly is on"):
        train("", PLAIN)
    with torch.autograd.set_detect_anomaly(mode=True):
        train("", PLAIN, seed=1)
