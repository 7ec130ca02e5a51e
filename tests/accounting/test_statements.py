import pytest

from privsgp.accounting import accountant
from privsgp.accounting.counting import Filter
from privsgp.accounting.ledger import Header, Ledger, read
from privsgp.accounting.mechanisms import Sag
from privsgp.accounting.statements import statements
from privsgp.errors import Refused

MECHANISM = Sag(sigma=0.1, clip=1.0, batch=10, samples=500)


def spend(path, run, releases, *, node=0, budget=3.0, close=True, relation="zero-out"):
    header = Header(
        node=node, run=run, mechanism=MECHANISM.describe(), relation=relation, steps=releases, spare=0,
        budget=None if budget is None else {"epsilon": budget, "delta": 1e-5}, simulation=False,
    )  # fmt: skip
    with Ledger.open(path, header, read(path) if path.exists() else ()) as ledger:
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


def test_several_runs_are_counted_by_the_filter(tmp_path):
    path = tmp_path / "node-0.jsonl"
    spend(path, "a", 20)
    spend(path, "b", 30, close=False)
    (found,) = statements(path)
    limit = Filter(3.0, 1e-5, 3.0)
    assert found.epsilon == pytest.approx(limit.epsilon_of(limit.cost(MECHANISM, 50, "zero-out")))
    assert found.epsilon >= accountant.epsilon(MECHANISM, 50, 1e-5).epsilon
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
