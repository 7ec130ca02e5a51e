"""Payments: no message before it is paid for, crashes counted, nothing charged that a clean stop can return."""

from __future__ import annotations

import contextlib
import dataclasses
from types import SimpleNamespace

import pytest
import torch

import runs
from privsgp.accounting import ledger as ledgers
from privsgp.accounting.mechanisms import SampledMean
from privsgp.engine.budget_guard import BudgetGuard
from privsgp.engine.folder import Folder
from privsgp.engine.spec import NodeBudgets
from privsgp.errors import Interrupted, Refused

pytestmark = pytest.mark.usefixtures("entered")

STEPS = 200


class Crash(Exception):
    """A process that dies."""


def _payments(folder, *, simulation=False, spare=40, budget=True, private=True):
    mechanism = SampledMean(sigma=1.0, clip=1.0, batch=2, samples=10)
    protection = NodeBudgets(
        mechanisms=[mechanism] * 2,
        budgets=[1.0 if budget else None] * 2,
        deltas=[1e-5] * 2,
        relation="zero-out",
        accountant="certified",
        allowance=[STEPS + spare] * 2 if budget else None,
        epsilon=lambda _node, _releases: 0.0,
    )
    spec = SimpleNamespace(
        here=range(2),
        steps=STEPS,
        simulation=simulation,
        device=torch.device("cpu"),
        protection=protection,
        mechanisms=protection.mechanisms,
        released=lambda _node, k: k,
        until=lambda _node, releases: min(STEPS, releases),
        algorithm=SimpleNamespace(private=private),
        settings=SimpleNamespace(local_steps=1),
        layout="",
        sites=(),
    )
    place = Folder(folder)
    place.prepare()
    place.identify({})
    return BudgetGuard(spec, place)


def _message(step, attempt=0):
    return torch.tensor([[step, attempt, 0.0], [step, attempt, 1.0]])


def _take(budget_guard, first, until, mark=0):
    """Send steps first … until − 1; return the first that was not granted."""
    for k in range(first, until):
        if not budget_guard.reserve(k):
            return k
        budget_guard.record(k, _message(k, mark))
    return until


def _crash_after(budget_guard, first, until, **kwargs):
    with contextlib.suppress(Crash), budget_guard:
        _take(budget_guard, first, until, **kwargs)
        raise Crash


def test_no_message_leaves_before_it_is_paid_for(tmp_path):
    with _payments(tmp_path) as budget_guard:
        assert budget_guard.reserve(0)
        with pytest.raises(Refused, match="not paid for"):
            budget_guard.record(STEPS - 1, _message(0))
    assert runs.charged(tmp_path) == [0, 0]


def test_a_whole_run_is_charged_its_steps_and_its_ledgers_are_closed(tmp_path):
    with _payments(tmp_path) as budget_guard:
        assert _take(budget_guard, 0, STEPS) == STEPS
    assert budget_guard.releases() == runs.charged(tmp_path) == [STEPS] * 2
    assert ledgers.read(tmp_path / "ledger" / "node-1.jsonl")[-1].closed


@pytest.mark.parametrize("simulation", [True, False])
def test_a_clean_stop_returns_what_was_not_sent(tmp_path, simulation):
    budget_guard = _payments(tmp_path, simulation=simulation)
    with contextlib.suppress(Interrupted), budget_guard:
        _take(budget_guard, 0, 70)
        raise Interrupted(70)
    assert budget_guard.releases() == runs.charged(tmp_path) == [70] * 2
    with _payments(tmp_path, simulation=simulation) as budget_guard:
        assert _take(budget_guard, 70, STEPS) == STEPS
    assert runs.charged(tmp_path) == [STEPS] * 2


def test_what_a_simulation_has_given_back_is_not_given_back_again(tmp_path):
    _crash_after(_payments(tmp_path, simulation=True), 0, 70)
    with contextlib.suppress(Interrupted), _payments(tmp_path, simulation=True) as budget_guard:
        _take(budget_guard, 64, 72)
        raise Interrupted(72)
    for _ in range(2):
        assert runs.charged(tmp_path) == [72] * 2
        with contextlib.suppress(Refused), _payments(tmp_path, simulation=True):
            raise Refused("a peer is lost before the first step", "start again")


@pytest.mark.parametrize(("spare", "ahead"), [(40, 20), (300, 64), (3, 1), (0, 1)])
def test_a_crash_costs_at_most_half_the_spare(tmp_path, spare, ahead):
    _crash_after(_payments(tmp_path, spare=spare), 0, 1)
    assert runs.charged(tmp_path) == [ahead] * 2


def test_without_a_seed_a_repeated_step_is_a_new_release(tmp_path):
    _crash_after(_payments(tmp_path), 0, 15)
    with _payments(tmp_path) as budget_guard:
        assert _take(budget_guard, 10, STEPS, mark=1) == STEPS
    assert runs.charged(tmp_path) == [20 + STEPS - 10] * 2
    attempts = {(step, attempt) for step, attempt, _ in runs.sent(tmp_path)}
    assert attempts == {(step, 1) for step in range(10, STEPS)}


def test_with_a_seed_the_same_message_goes_out_again_for_nothing(tmp_path):
    _crash_after(_payments(tmp_path, simulation=True, spare=0), 0, 100)
    with _payments(tmp_path, simulation=True, spare=0) as budget_guard:
        assert _take(budget_guard, 64, STEPS) == STEPS
    assert runs.charged(tmp_path) == [STEPS] * 2
    assert [step for step, _, _ in runs.sent(tmp_path)] == list(range(STEPS))


def test_a_budget_that_is_spent_grants_nothing_more(tmp_path):
    _crash_after(_payments(tmp_path), 0, 150)
    with _payments(tmp_path) as budget_guard:
        assert _take(budget_guard, 0, STEPS) == 80
    assert runs.charged(tmp_path) == [STEPS + 40] * 2
    with _payments(tmp_path) as budget_guard:
        assert not budget_guard.reserve(80)


def test_nodes_with_unequal_rests_end_together_and_can_close(tmp_path):
    """A crash between two ledgers charges one node more: the poorest decides, and nobody pays twice for a step."""
    first = _payments(tmp_path)
    with contextlib.suppress(Crash), first:
        first.ledgers[0].reserve(0, 30)
        raise Crash
    _crash_after(_payments(tmp_path), 0, 150)
    spent = runs.charged(tmp_path)
    assert spent[0] == spent[1] + 30
    with _payments(tmp_path) as budget_guard:
        assert _take(budget_guard, 0, STEPS) == STEPS + 40 - spent[0]
    assert runs.charged(tmp_path) == [STEPS + 40, STEPS + 10]
    with _payments(tmp_path) as budget_guard:  # closed: the richer one does not pay any more
        assert not budget_guard.reserve(50)


def test_a_node_may_release_often_in_a_step_and_another_never(tmp_path):
    budget_guard = _payments(tmp_path)
    budget_guard.spec.released = lambda node, k: 100 * k * (node == 0)
    budget_guard.spec.until = lambda node, releases: releases // 100 if node == 0 else STEPS
    budget_guard.spec.protection = dataclasses.replace(budget_guard.spec.protection, allowance=[STEPS * 100 + 50, 0])
    with contextlib.suppress(Crash), budget_guard:
        assert budget_guard.reserve(0)
        assert budget_guard.reserve(0)
        assert runs.charged(tmp_path) == [100, 0]
        assert budget_guard.reserve(1)
        budget_guard.record(199, _message(0)[:1], 0)
        with pytest.raises(Refused, match="not paid for"):
            budget_guard.record(200, _message(0)[:1], 0)
        with pytest.raises(Refused, match="not paid for"):
            budget_guard.record(0, _message(0)[:1], 1)
        raise Crash
    assert runs.charged(tmp_path) == [200, 0]


def test_fixed_noise_has_no_budget_to_spend(tmp_path):
    for _ in range(5):
        _crash_after(_payments(tmp_path, budget=False), 0, 150)
    with _payments(tmp_path, budget=False) as budget_guard:
        assert _take(budget_guard, 0, STEPS) == STEPS
    assert runs.charged(tmp_path) == [5 * 192 + STEPS] * 2


def test_a_method_without_noise_pays_nothing(tmp_path):
    with _payments(tmp_path, private=False) as budget_guard:
        assert _take(budget_guard, 0, STEPS) == STEPS
    assert budget_guard.releases() == [0, 0]
    assert list((tmp_path / "ledger").iterdir()) == []


def test_where_one_ledger_is_refused_the_others_are_unlocked(tmp_path):
    other = tmp_path / "ledger" / "node-1.jsonl"
    with _payments(tmp_path):
        pass
    written = other.read_bytes()
    other.write_bytes(b"no ledger\n")
    with pytest.raises(Refused, match=r"node-1\.jsonl, line 1"), _payments(tmp_path):
        pass
    other.write_bytes(written)
    with _payments(tmp_path):
        pass


def _committing(folder, committed, **options):
    guard = _payments(folder, spare=0, **options)
    guard.resume(max(committed, 0), commits=True)
    return guard


def test_steps_that_are_committed_before_they_are_sent_are_charged_once_whatever_crashes(tmp_path):
    done = 0
    for crash in (0, 1, 3, 70):  # steps until the crash, which comes after the commit and before the line
        with contextlib.suppress(Crash), _committing(tmp_path, done - 1) as guard:
            if done:
                guard.check_resumed(done - 1, _message(done - 1))
            for k in range(done, done + crash):
                assert guard.reserve(k)
                done = k + 1  # the commit
                if done == crash:
                    raise Crash
                guard.record(k, _message(k))
            raise Crash
    with _committing(tmp_path, done - 1) as guard:
        guard.check_resumed(done - 1, _message(done - 1))
        assert _take(guard, done, STEPS) == STEPS
    assert guard.releases() == [STEPS] * 2
    assert [len(runs.sent(tmp_path, node)) for node in range(2)] == [STEPS] * 2


def test_a_commit_that_is_older_than_the_ledger_is_refused(tmp_path):
    with contextlib.suppress(Crash), _committing(tmp_path, -1) as guard:
        _take(guard, 0, 5)
        raise Crash
    with pytest.raises(Refused, match="a mixture"), _committing(tmp_path, 2) as guard:
        guard.check_resumed(2, _message(2))


@pytest.mark.parametrize("simulation", [False, True])
def test_a_commit_with_another_message_than_the_ledger_knows_is_refused(tmp_path, simulation):
    """Where noise is shared, two messages of one step would be under the same numbers."""
    with contextlib.suppress(Crash), _committing(tmp_path, -1, simulation=simulation) as guard:
        _take(guard, 0, 3)
        raise Crash
    with _committing(tmp_path, 2, simulation=simulation) as guard:
        guard.check_resumed(2, _message(2))
    with (
        pytest.raises(Refused, match="step 2 with another message"),
        _committing(tmp_path, 2, simulation=simulation) as guard,
    ):
        guard.check_resumed(2, _message(2) + 1)


def test_a_committed_step_that_was_not_paid_for_is_not_sent(tmp_path):
    """A stop between commit and record gives the payment back."""
    guard = _payments(tmp_path)
    guard.resume(0, commits=True)
    with contextlib.suppress(Interrupted), guard:
        _take(guard, 0, 3)
        assert guard.reserve(3)
        raise Interrupted(3)
    again = _payments(tmp_path)
    again.resume(3, commits=True)
    with again, pytest.raises(Refused, match="has not paid for"):
        again.check_resumed(3, _message(3))


def test_steps_of_a_message_are_paid_for_together_or_not_taken(tmp_path):
    """A budget for STEPS steps with 7 a message: what is left in the end pays for no message."""
    budget_guard = _payments(tmp_path, spare=0)
    budget_guard.spec.settings.local_steps = 7
    with budget_guard:
        assert [k for k in range(STEPS) if budget_guard.reserve(k)] == list(range(STEPS - STEPS % 7))
    assert STEPS % 7
