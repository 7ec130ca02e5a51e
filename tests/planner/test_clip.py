"""The clip that the planner chooses: from public facts alone, and written into run.toml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from privsgp.cli import app
from privsgp.data import schema as schemas
from privsgp.errors import Refused
from privsgp.planner import stand_in
from privsgp.runs import config as configs
from privsgp.runs.first import write_values

SCHEMA = """
[target]
column = "ill"
classes = ["no", "yes"]
balance = [0.75, 0.25]
[columns]
age = { type = "number", centre = 60, scale = 10 }
sex = { type = "category", values = ["f", "m"] }
ward = { type = "category", values = ["a", "b", "c"], missing = "other" }
smokes = { type = "yes/no" }
"""
RUN = """# first
[data]
schema = "schema.toml"
sites = ["aachen", "basel"]
path = "{site}.csv"
sizes = [400, 300]

[model]
name = "logistic"
[privacy]
epsilon = 3.0
clip = "auto"   # chosen
[algorithm]
name = "privsgp-sag"
batch = "auto"
steps = "auto"
step_size = "auto"  # γ
weights = "samples"
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path / "run.toml"


def planned(run, *options):
    result = CliRunner().invoke(app, ["plan", str(run), "--json", *options], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_a_plan_needs_no_table_and_is_the_same_everywhere(run):
    """No site's file is there. Two sites compute the same."""
    first, second = planned(run), planned(run)
    assert first == second
    assert first["clip"] > 1
    assert min(first["test_loss"]) < min(first["constant_loss"])


def test_the_plan_is_written_and_comments_stay(run):
    found = planned(run, "--write")
    text = run.read_text()
    assert "# first" in text
    assert "# chosen" in text
    assert "# γ" in text
    written = tomllib.loads(text)
    assert written["privacy"]["clip"] == found["clip"]
    assert written["algorithm"]["steps"] == found["steps"]
    assert configs.read(run).auto == ()


def test_a_value_of_several_lines_is_not_replaced(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[algorithm]\nweights = [\n1.0,\n2.0]\n")
    with pytest.raises(Refused, match="weights"):
        write_values(file, {"algorithm.weights": "equal"})
    assert "2.0" in file.read_text()


def test_other_sections_keep_their_auto():
    values = {"privacy": {"epsilon": 1.0, "clip": "auto"}, "algorithm": {"name": "privsgp", "steps": "auto"}}
    config = configs.parse(values)
    assert config.auto == ("algorithm.steps", "privacy.clip")
    assert config.with_section("engine", device="cpu").auto == config.auto
    assert config.with_planned({"algorithm.steps": 7, "privacy.clip": 2.0}).auto == ()


def test_the_range_goes_from_a_very_strong_signal_to_none(run):
    found = planned(run)
    assert [name.split(" (")[0] for name in found["signals"]] == ["weak", "moderate", "strong", "very strong", "none"]
    *_, strong, none = found["test_loss"]
    assert strong == min(found["test_loss"])
    assert strong < found["constant_loss"][-2]
    assert none > found["constant_loss"][-1]
    shown = CliRunner().invoke(app, ["plan", str(run)], catch_exceptions=False).stdout
    assert f"{strong:.4g}, very strong (AUC 0.95), to {max(found['test_loss']):.4g}, " in " ".join(shown.split())


def test_no_warning_that_no_signal_means_no_gain(run):
    """A table without a signal never beats a constant guess, which everybody knows."""
    run.write_text(run.read_text().replace("[400, 300]", "[40000, 30000]"))
    found = planned(run)
    assert found["test_loss"][-1] > found["constant_loss"][-1]
    assert not any("base rate" in line for line in found["warnings"])


def test_a_planned_number_is_in_the_targets_unit(run):
    numbers = SCHEMA.replace('classes = ["no", "yes"]\nbalance = [0.75, 0.25]', "centre = 150\nscale = 75")
    (run.parent / "schema.toml").write_text(numbers)
    run.write_text(run.read_text().replace('"logistic"', '"linear"\nloss = "mse"'))
    found = planned(run)
    shown = " ".join(CliRunner().invoke(app, ["plan", str(run)], catch_exceptions=False).stdout.split())
    assert f"planned RMSE │ {75 * min(found['test_loss']) ** 0.5:.4g}, very strong (R² 0.80)" in shown


def test_another_process_and_hash_seed_plan_the_same(run):
    """Sites plan from the same schema: each must write the same clip, steps and step size."""
    command = [sys.executable, "-m", "privsgp", "plan", str(run), "--json"]
    told = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": "1"}, capture_output=True, check=True)
    assert json.loads(told.stdout) == planned(run)


def test_a_small_site_gains_more_often_than_a_large_one(run):
    run.write_text(run.read_text().replace("[400, 300]", "[4000, 40]"))
    found = planned(run)
    large, small = (
        [joint < alone[site] for joint, alone in zip(found["test_loss"][:4], found["alone_loss"][:4], strict=True)]
        for site in (0, 1)
    )
    assert sum(small) > sum(large)


def test_the_minutes_follow_the_link(run):
    fast, slow = (planned(run, "--link", speed)["between_sites"] for speed in ("1000", "0.1"))
    assert fast["bytes"] == slow["bytes"]
    assert slow["seconds"] - fast["seconds"] == pytest.approx(fast["bytes"] * 8 / 1e5, rel=0.01)


def write_public(folder, rows, strength):
    """Rows of a public table in which age predicts the target with this strength."""
    rng = np.random.default_rng(0)
    age, sex = rng.uniform(20, 90, rows), rng.choice(list("fm"), rows)
    ill = rng.random(rows) < 1 / (1 + np.exp(-strength * (age - 55) / 20))
    lines = [f"{a:.1f},{s},a,no,{'yes' if i else 'no'}" for a, s, i in zip(age, sex, ill, strict=True)]
    (folder / "public.csv").write_text("\n".join(["age,sex,ward,smokes,ill", *lines]) + "\n")


def test_few_public_rows_bound_the_signal(run):
    """A table of 120 rows is too small to rehearse on, but it shows how strong the signal may be."""
    ranges = {}
    for strength in (0.0, 4.0):
        write_public(run.parent, 120, strength)
        found = planned(run, "--set", 'plan.data="public.csv"')
        assert found["estimated_on"]["name"] == "public.csv"
        assert not any("learns from" in line for line in found["warnings"])
        ranges[strength] = min(found["test_loss"]), max(found["test_loss"])
    assert ranges[4.0][1] < ranges[0.0][1]
    assert ranges[4.0][0] < ranges[0.0][0]
    whole = planned(run)["test_loss"]
    assert ranges[0.0][1] - ranges[0.0][0] < max(whole) - min(whole)


def test_many_public_rows_are_rehearsed_on(run):
    write_public(run.parent, 1400, 2.0)
    found = planned(run, "--set", 'plan.data="public.csv"')
    assert found["signals"][0] == "division 1"


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 0.95), st.sampled_from(stand_in.SIGNALS), st.integers(0, 5))
def test_made_up_rows_have_the_public_balance(share, signal, seed):
    values = tomllib.loads(SCHEMA)
    values["target"]["balance"] = [1 - share, share]
    made = stand_in.table(schemas.parse(values), signal._replace(evenness=1.0), samples=800, seed=seed)
    assert made.x.shape[1] == schemas.parse(values).width
    assert float(made.y_test.double().mean()) == pytest.approx(share, abs=0.06)
