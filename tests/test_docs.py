"""Numbers in the docs that a command makes: the command still makes them."""

from __future__ import annotations

import importlib
import json
import pathlib
import re

import pytest

import runs
from privsgp_research import figures, reproduce

ROOT = pathlib.Path(__file__).parent.parent
MNIST = ("--samples", "1200", "--batch", "240", "--steps", "575")
CIFAR = ("--samples=3125", "--batch=25", "--steps=3000", "--clip=10", "--epsilon=3")


@pytest.mark.parametrize(
    ("page", "row", "command", "key"),
    [
        ("docs/proofs/saga.md", "(`privsgp-vr`), as {:.3f}", ("account", *MNIST, "--sigma", "0.05"), "epsilon"),
        (
            "docs/proofs/saga.md",
            "(`privsgp`) counts as ε = {:.3f}",
            ("account", "--algorithm", "privsgp", *MNIST, "--sigma", "0.05"),
            "epsilon",
        ),
        ("docs/proofs/saga.md", "| {:.3f} | 0.677 | + 85 %", ("calibrate", "--algorithm=privsgp", *CIFAR), "sigma"),
        ("docs/proofs/saga.md", "| 0.366 | {:.3f} | + 85 %", ("calibrate", *CIFAR), "sigma"),
        (
            "docs/proofs/saga.md",
            "| 0.3 | {:.3f} | − 32 %",
            ("calibrate", *CIFAR, "--set=algorithm.difference_scale=auto", "--set=model.name=cnn"),
            "sigma",
        ),
        (
            "docs/proofs/saga.md",
            "+ 85 % | {:g} | 0.248",
            ("calibrate", *CIFAR, "--set=algorithm.difference_scale=auto", "--set=model.name=cnn"),
            "difference_scale",
        ),
        (
            "docs/paper.md",
            "b = 48: {:.2f}; b = 240: 1.03",
            ("calibrate", "--accountant=published", "--samples=1200", "--batch=48", "--steps=575", "--epsilon=1"),
            "certified_epsilon",
        ),
    ],
)
def test_a_number_is_what_its_command_says(page, row, command, key):
    ran = runs.command(*command, "--json")
    assert ran.code == 0, ran.err
    assert row.format(json.loads(ran.out)[key]) in (ROOT / page).read_text()


def test_the_page_of_accuracies_says_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    made = importlib.import_module("what_it_buys")
    text = made.written(made.RESULTS)
    assert made.pages.shown((ROOT / "docs" / "results-accuracy.md").read_text(), "what it buys") == text.strip()
    for path in made.RESULTS.glob("*.json"):
        assert path.stem.removesuffix("-pairwise") in made.PARTS
        assert f"(results/what-it-buys/{path.stem}.svg)" in text
        assert path.with_suffix(".svg").exists()


def test_the_results_page_says_what_its_figures_say(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    folder, made = ROOT / "docs" / "results", importlib.import_module("figures_table")
    for path in folder.glob("*-*.json"):
        told = json.loads(path.read_text())
        assert reproduce.judged(told) == told  # by the rule of the code at hand
        assert path.with_suffix(".svg").exists()
    text = made.written(folder)
    assert text.count("![") == 2 * len(figures.NAMES)
    assert "K*" not in text  # it would begin to slant
    assert made.pages.shown((ROOT / "docs" / "results.md").read_text(), "figures") == text.strip()


def test_the_results_page_compares_methods_as_their_runs_did(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    made = importlib.import_module("comparison_table")
    text = made.written(ROOT / "docs" / "results" / "comparison")
    assert made.pages.shown((ROOT / "docs" / "results.md").read_text(), "comparison") == text


@pytest.mark.parametrize(
    ("mark", "shown"),
    [
        ("run.toml", "| `epsilon` |"), ("policy.toml", "| `epsilon_total` |"), ("sections", "### `privsgp.Privacy`"),
        ("commands", "## `privsgp join`"), ("provenance", "**record**"),
    ],
)  # fmt: skip
def test_a_page_is_filled_from_the_code(monkeypatch, mark, shown):
    monkeypatch.syspath_prepend(ROOT / "docs")
    page = importlib.import_module("commands").on_page_markdown(f"<!-- {mark} -->")
    assert shown in page


def test_errors_on_the_page_of_errors_are_errors_of_the_code():
    page = (ROOT / "docs" / "howto" / "troubleshooting.md").read_text()
    errors = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert errors
    assert [part for error in errors for part in error.split(" … ") if part not in code] == []


def test_tests_that_a_page_names_exist():
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for name in re.findall(r"`(test_\w+)…?`", page.read_text()):
            assert f"def {name}" in code, f"{page}: {name}"
