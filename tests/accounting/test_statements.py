import dataclasses

import pytest

from privsgp.accounting import accountant
from privsgp.accounting.chain import Chain
from privsgp.accounting.ledger import Header, Ledger
from privsgp.accounting.mechanisms import Sag
from privsgp.accounting.statements import statements
from privsgp.errors import Refused

MECHANISM = Sag(sigma=0.1, clip=1.0, batch=10, samples=500)


def spend(path, run, releases, *, node=0, budget=3.0, close=True, relation="zero-out"):
    header = Header(
        node=node, run=run, mechanism=MECHANISM.describe(), relation=relation, steps=releases, spare=0,
        budget=None if budget is None else {"epsilon": budget, "delta": 1e-5}, simulation=False,
    )  # fmt: skip
    if path.exists():  # as 1.0.0rc1 wrote it
        chain = Chain.open(path, lambda line: None)
        chain.write({"kind": "open", "format": 3} | dataclasses.asdict(header))
        for first in range(0, releases, 64):
            chain.write({"kind": "reserve", "first": first, "count": min(64, releases - first), "attempt": 0})
        chain.close()
        return
    with Ledger.open(path, header) as ledger:
        assert ledger.reserve(0, releases) == releases
        for step in range(releases):
            ledger.sent(step, "")
        if close:
            ledger.close()


def test_one_run_is_counted_by_the_certified_accountant(tmp_path):
    spend(tmp_path / "ledger" / "node-0.jsonl", "a", 20)
    (found,) = statements(tmp_path)
    assert found.epsilon == accountant.epsilon(MECHANISM, 20, 1e-5).epsilon
    assert (found.releases, found.runs, found.budget, found.complete) == (20, 1, 3.0, True)


def test_several_runs_of_an_older_release_add_up(tmp_path):
    path = tmp_path / "node-0.jsonl"
    spend(path, "a", 20)
    spend(path, "b", 30, close=False)
    (found,) = statements(path)
    each = [accountant.epsilon(MECHANISM, releases, 1e-5).epsilon for releases in (20, 30)]
    assert (found.epsilon, found.delta) == (pytest.approx(sum(each)), pytest.approx(2e-5))
    assert found.budget is None
    assert (found.releases, found.runs, found.complete) == (50, 2, False)


def test_several_runs_without_a_budget_have_no_finite_bound(tmp_path):
    path = tmp_path / "node-0.jsonl"
    spend(path, "a", 2, budget=None)
    spend(path, "b", 2, budget=None)
    (found,) = statements(path)
    assert found.to_json()["epsilon"] is None


def test_runs_under_two_relations_have_no_finite_bound(tmp_path):
    path = tmp_path / "node-0.jsonl"
    spend(path, "a", 2)
    spend(path, "b", 2, relation="replace-one")
    (found,) = statements(path)
    assert found.to_json()["epsilon"] is None


def test_nodes_come_in_order(tmp_path):
    for node in (10, 2, 0):
        spend(tmp_path / "ledger" / f"node-{node}.jsonl", "a", 1, node=node)
    assert [s.node for s in statements(tmp_path)] == [0, 2, 10]


def test_a_folder_without_ledgers_is_refused(tmp_path):
    with pytest.raises(Refused, match="no ledger in"):
        statements(tmp_path)
