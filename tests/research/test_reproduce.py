"""The paper's figures: as it describes them, small ones that keep its noise, and one made from end to end."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import runs
from privsgp.accounting.mechanisms import Saga
from privsgp.algorithms import ALGORITHMS
from privsgp.data import load
from privsgp.engine.folder import Folder
from privsgp.research import published
from privsgp.runs import config as configs
from privsgp_research import claims, figures, picture
from privsgp_research import reproduce as reproducing
from privsgp_research.bench import Bench
from privsgp_research.figures import FIGURES, MODES, NAMES, SCALES, SETTINGS, known

TINY = dataclasses.replace(
    SETTINGS["mnist", "small"], data="digits", samples=None, nodes=4, model={"name": "logistic"}, batch=30, best=12,
    others=(6,), epsilons=(2.0, 8.0), epsilon=4.0, networks=(2, 4), steps=10,
)  # fmt: skip


@pytest.fixture
def _tiny(monkeypatch):
    monkeypatch.setitem(SETTINGS, ("mnist", "small"), TINY)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("mode", MODES)
def test_every_curve_is_a_configuration(name, scale, mode):
    setting = SETTINGS[name.partition("-")[0], scale]
    curves = known(name).curves(setting, mode)
    assert len({curve.key for curve in curves}) == len(curves) > 1
    for curve in curves:
        if curve.values["algorithm"]["name"] in ALGORITHMS:
            assert configs.parse(curve.values).seed == 0


def test_the_full_figures_are_the_papers():
    steps = {
        data: sorted(c.values["algorithm"]["steps"] for c in figures.best_k(SETTINGS[data, "full"], "published"))
        for data in ("mnist", "cifar")
    }
    assert steps == {"mnist": [125, 270, 575, 1200, 2075], "cifar": [500, 1125, 3120, 6250, 12500]}
    on_the_line = [c for c in figures.tradeoff(SETTINGS["cifar", "full"], "published") if c.line == "K*"]
    assert [c.values["algorithm"]["steps"] for c in on_the_line] == [347, 780, 1387, 2167, 3120, 4247, 5547]
    for data in ("mnist", "cifar"):
        curves = figures.speedup(SETTINGS[data, "full"], "published")
        products = {c.values["data"]["nodes"] * c.values["algorithm"]["steps"] for c in curves}
        assert len(products) == 1


@pytest.mark.parametrize(("data", "total"), [("mnist", 60_000), ("cifar", 50_000)])
def test_small_figures_have_the_noise_of_full_ones(data, total):
    def sigmas(setting, samples):
        mechanism = Saga(sigma=0.0, clip=setting.clip, batch=1.0, samples=samples // setting.nodes)
        steps = sorted((setting.best, *setting.others))
        return [published.sigma(mechanism, K, setting.epsilon, 1e-5) for K in steps]

    full, small = SETTINGS[data, "full"], SETTINGS[data, "small"]
    assert sigmas(small, small.samples) == pytest.approx(sigmas(full, total), rel=0.03)


@pytest.mark.usefixtures("_tiny")
def test_a_figure_is_made_judged_and_not_made_twice(tmp_path):
    arguments = ("reproduce", "mnist-variance-reduction", "--mode=published", "--device=cpu", "--out", tmp_path)
    ran = runs.command(*arguments, "--json", "--set=algorithm.step_size=0.5")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    stem = tmp_path / "mnist-variance-reduction-published-small"
    assert told == json.loads(stem.with_suffix(".json").read_text())
    assert [curve["label"] for curve in told["curves"]] == ["privsgp-vr", "privsgp", "privsgp-vr, scaled differences"]
    assert [curve["config"]["algorithm"].get("difference_scale") for curve in told["curves"]] == [1.0, None, "auto"]
    assert {curve["sigma"] for curve in told["curves"]} == {0.1}
    assert {curve["step_size"] for curve in told["curves"]} == {0.5}
    assert told["holds"] in (True, False)
    assert "loss" in told["found"]
    assert "scaled" not in told["found"]
    assert told["scaled"]["found"].startswith("privsgp-vr, scaled differences: ")
    drawn = stem.with_suffix(".svg").read_text()
    for curve in told["curves"]:
        assert f"{curve['label']} (ε = {curve['epsilon_certified']:.3g})" in drawn
    before = runs.contents(tmp_path)
    again = runs.command(*arguments, "--set=algorithm.step_size=0.5")
    assert "does not hold" in again.out or "holds" in again.out
    assert runs.contents(tmp_path).keys() == before.keys()
    assert [v for k, v in runs.contents(tmp_path).items() if "summary" in k] == [
        v for k, v in before.items() if "summary" in k
    ]
    elsewhere = runs.command(*arguments, "--set=engine.device=tpu")
    assert elsewhere.code == 2
    assert "engine.device = 'tpu'" in elsewhere.err


def test_where_a_setting_says_so_methods_have_the_theorems_step_size(tmp_path, monkeypatch):
    monkeypatch.setitem(SETTINGS, ("mnist", "small"), dataclasses.replace(TINY, tuned=False))
    told = reproducing.reproduce("mnist-methods", Bench(tmp_path), mode="certified", seeds=1)
    assert {curve["step_size"] for curve in told["curves"]} == {TINY.step_size(TINY.nodes, TINY.best)}


def test_a_claim_is_judged_as_printed_and_with_scaled_differences():
    def curve(label, accuracy):
        same = {"line": "", "x": 0.0, "train_loss": {"each": [1 - accuracy]}}
        return same | {"label": label, "accuracy": {"each": [accuracy]}}

    printed = [curve("privsgp-vr", 0.7), curve("privsgp", 0.8)]
    figure = {"name": "mnist-variance-reduction", "scale": "full", "mode": "certified"}
    before = reproducing.judged(figure | {"curves": printed})
    assert before["holds"] is False
    assert "scaled" not in before
    assert "left out" not in before["found"]
    assert list(claims.stated(before)) == ["does not hold"]
    ours = [*printed, curve("privsgp-vr, scaled differences", 0.9)]
    both = reproducing.judged(before | {"curves": ours})
    assert (both["holds"], both["scaled"]["holds"]) == (False, True)
    assert list(claims.stated(both)) == ["does not hold as printed", "holds with scaled differences"]
    assert reproducing.judged(both | {"curves": printed}) == before  # no verdict outlives its curve


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("data", ["mnist", "cifar"])
def test_figures_of_the_paper_take_its_own_estimator(data, scale):
    for kind, figure in FIGURES.items():
        for curve in figure.curves(SETTINGS[data, scale], "certified"):
            algorithm = curve.values["algorithm"]
            if algorithm["name"] == "privsgp-vr":
                assert algorithm["difference_scale"] == ("auto" if curve.instead_of else 1.0)
            assert not curve.instead_of or kind == "variance-reduction"


@pytest.mark.usefixtures("_tiny")
def test_without_the_claims_own_curve_a_figure_is_drawn_and_not_judged(tmp_path):
    arguments = ("reproduce", "mnist-best-k", "--mode=published", "--device=cpu", "--seeds=1", "--max-steps=6")
    ran = runs.command(*arguments, "--out", tmp_path)
    assert ran.code == 0, ran.err
    assert "cannot be judged: the claim's own curve was left out; K = 6" in ran.out
    stem = tmp_path / "mnist-best-k-published-small"
    told = json.loads(stem.with_suffix(".json").read_text())
    assert told["holds"] is None
    assert told["found"].endswith("; left out: K = 12")
    assert "the claim cannot be judged" in stem.with_suffix(".svg").read_text()


def test_points_on_lines_are_drawn_against_the_budget(tmp_path):
    curves = [
        {"line": line, "x": x, "label": "", "epsilon_certified": x + 1, "accuracy": {"mean": 0.5 + x / 10, "sd": 0.01}}
        for line in ("K*/2", "K*")
        for x in (1.0, 2.0)
    ]
    told = {
        "name": "mnist-tradeoff",
        "mode": "published",
        "scale": "small",
        "holds": True,
        "found": "",
        "curves": curves,
    }
    picture.draw_figure(told, tmp_path / "x.svg")
    drawn = (tmp_path / "x.svg").read_text()
    for words in ("K*/2 (ε = 2 … 3)", "K* (ε = 2 … 3)", "ε, nominal", "the claim holds"):
        assert words in drawn


def test_all_ten_are_listed_with_what_the_paper_says():
    ran = runs.command("reproduce", "--list")
    assert ran.code == 0
    assert len(NAMES) == 10
    for name in NAMES:
        assert name in ran.out
    assert FIGURES["tradeoff"].says in ran.out.replace("│", "")
    told = json.loads(runs.command("reproduce", "--list", "--json").out)
    assert [figure["name"] for figure in told] == NAMES
    assert told[2]["claim"] == FIGURES["tradeoff"].says


def test_what_is_not_there_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("PRIVSGP_DATA", raising=False)
    for arguments, word in (
        (("mnist-best-k",), "PRIVSGP_DATA"),
        (("mnist-everything",), "mnist-best-k"),
        ((), "no figure is named   → take one of mnist-speedup, mnist-best-k"),
        (("mnist-best-k", "--scale=huge"), "small, full"),
        (("mnist-best-k", "--max-steps=3"), "no curve"),
        (("mnist-best-k", "--device=tpu"), "take one of auto, cpu"),
    ):
        ran = runs.command("reproduce", *arguments, "--out", tmp_path / "x")
        assert ran.code == 2
        assert word in ran.err.replace("\n", " ")


def test_two_at_once_in_one_folder_are_refused(tmp_path):
    with Folder(tmp_path).locked():
        ran = runs.command("reproduce", "mnist-best-k", "--out", tmp_path)
    assert ran.code == 2
    assert f"{tmp_path} is in use by another process" in ran.err.replace("\n", "")
    assert "a new run needs another --out" in ran.err


def test_a_small_copy_is_a_part_of_the_whole(tmp_path):
    path = tmp_path / "data" / "digits-100.npz"
    reproducing.small_copy("digits", 100, path, None)
    part, whole = load(str(path)), load("digits")
    assert len(part.y) == 100
    assert part.classes == 10
    rows = {row.tobytes() for row in whole.x}
    assert all(row.tobytes() in rows for row in part.x)
    before = path.stat().st_mtime_ns
    reproducing.small_copy("digits", 100, path, None)
    assert path.stat().st_mtime_ns == before


def test_pixels_are_averaged_two_by_two():
    images = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4)
    halved = reproducing.halved(images)
    assert halved.shape == (2, 3, 2, 2)
    assert halved[1, 2, 1, 0] == images[1, 2, 2:4, 0:2].mean()
