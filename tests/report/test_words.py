"""What is said of privacy: never more than was proved."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsgp.accounting.curve import Gaussian
from privsgp.accounting.shown import down, guess, one_in, percent_up, up
from privsgp.accounting.statements import statements
from privsgp.report import page, terminal
from privsgp.runs import card, views
from privsgp.runs.views import read

EPSILONS = st.floats(1e-3, 700)


@given(EPSILONS, st.floats(0, 0.1))
def test_a_guess_is_better_than_a_coin_and_never_better_than_certain(epsilon, delta):
    assert 0.5 <= guess(epsilon, delta) <= 1
    assert guess(epsilon, delta) <= guess(epsilon + 1, delta)


@pytest.mark.parametrize("shift", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_no_test_of_a_gaussian_beats_it(shift, delta):
    # the best guess between N(0, 1) and N(μ, 1) is right with probability Φ(μ / 2)
    best = (1 + math.erf(shift / 2 / math.sqrt(2))) / 2
    assert guess(Gaussian(shift).epsilon(delta), delta) >= best


@given(st.floats(1e-15, 1e6), st.integers(2, 6))
def test_an_epsilon_or_a_delta_is_rounded_up_and_by_less_than_a_digit(value, digits):
    assert value <= float(up(value, digits)) <= value * (1 + 1.001 * 10.0 ** (1 - digits))


@given(st.floats(1e-15, 1e6), st.integers(2, 6))
def test_what_is_left_of_a_budget_is_rounded_down(value, digits):
    assert value * (1 - 1.001 * 10.0 ** (1 - digits)) <= float(down(value, digits)) <= value


@pytest.mark.parametrize("typed", ["0.1", "3", "1e-05", "0.7", "1e-09", "inf", "0"])
def test_what_was_typed_is_printed_as_it_was(typed):
    assert up(float(typed)) == typed


@given(st.floats(0.5, 1.0))
def test_a_bound_on_guesses_is_rounded_up(value):
    assert value * 100 <= float(percent_up(value).removesuffix(" %")) <= value * 100 + 0.1001


def test_the_worst_site_is_named(secret):
    view = read(secret)
    assert f"at site 3 (ε = {up(view.sites[3].epsilon)}" in " ".join(view.privacy)
    assert "Several records of one person" in " ".join(view.not_covered)


def test_the_worst_site_is_worst_by_both_numbers(secret):
    view = read(secret)
    one = [dataclasses.replace(s, epsilon=1.0, delta=0.01 if i == 2 else 1e-5) for i, s in enumerate(view.sites)]
    said = " ".join(dataclasses.replace(view, sites=one).privacy)
    assert "at site 2 (ε = 1, δ = 0.01)" in said
    assert "at most δ (1 in 100)" in said


@given(st.floats(1e-12, 0.5))
def test_a_delta_is_never_rarer_than_it_is(delta):
    rare = int(one_in(delta).removeprefix("1 in ").replace(",", ""))
    assert 1 / rare >= delta * (1 - 1e-15)
    assert 1 / (rare + 1) <= delta


def test_delta_in_plain_words(secret):
    assert "at most δ (1 in 100,000)" in " ".join(read(secret).privacy)


def test_ledgers_of_other_machines_are_named_as_missing(secret, tmp_path):
    folder = shutil.copytree(secret, tmp_path / "half")
    for node in (2, 3):
        (folder / "ledger" / f"node-{node}.jsonl").unlink()
    assert "the other 2 sites keep their own ledgers" in " ".join(read(folder).privacy)


def test_replace_one_asks_another_question(made):
    folder = made("replaced", privacy__relation="replace-one")
    assert "which of two versions of a record" in " ".join(read(folder).privacy)


def test_a_large_epsilon_is_called_what_it_is(made, secret):
    weak = read(made("weak", privacy__sigma=0.02))
    assert max(s.epsilon for s in weak.sites) > views.WEAK
    assert "is too large to protect a record" in " ".join(weak.privacy)
    assert "is too large to protect a record" not in " ".join(read(secret).privacy)


@pytest.mark.parametrize(
    ("name", "sees"),
    [
        ("dp-srm", "only the sums of all sites' messages"),
        ("ldp-svrg", "reads every message and model of a site"),
        ("dp-sgd", "except the site that holds all records"),
        ("local", "reads every message and model of a site"),
    ],
)
def test_who_sees_what_is_said_as_the_algorithm_declares_it(made, name, sees):
    said = " ".join(read(made(f"sees-{name}", algorithm__name=name, algorithm__steps=3)).privacy)
    assert sees in said
    assert "not in this folder" not in said


def test_no_view_shows_less_than_was_spent(secret, capsys):
    """ε = 2.96325 was 2.963 on the terminal and on the card, and 2.96 in charts."""
    epsilon, delta = 2.96325, 1.23412e-5
    view = read(secret)
    summary = view.summary | {"epsilon_spent": [epsilon] * 4, "epsilon_budget": [epsilon] * 4, "delta": [delta] * 4}
    of_summary = views.of(summary, secret)
    spent = [dataclasses.replace(s, epsilon=epsilon, delta=delta, budget=epsilon) for s in statements(secret)]
    terminal.show_statements(spent)
    terminal.show_run(of_summary)
    shown = [
        page.page(dataclasses.replace(view, sites=[views._stated(one) for one in spent])),
        card.markdown(card.read(secret / "model.safetensors"), of_summary),
        capsys.readouterr().out,
    ]
    for text in shown:
        numbers = {float(number) for number in re.findall(r"\d+\.\d+(?:e-?\d+)?", text)}
        assert any(epsilon <= number < 2.98 for number in numbers)
        assert not [n for n in numbers if 2.95 <= n < epsilon or 1.2e-5 <= n < delta]
