"""Make a figure of the paper again: run its curves, draw them, and say whether the paper's claim holds.

In mode "published" noise is the paper's and the certified ε of every curve stands in its legend; in mode "certified"
all curves have the same certified budget. A claim that does not hold is reported as not holding, and one whose own
curve was left out as one that cannot be judged.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp import data
from privsgp.devices import device_name
from privsgp.errors import Refused, refuse_below_one
from privsgp.files import replace, write_json
from privsgp.research import compare, picture
from privsgp.research.claims import Found
from privsgp.research.figures import SETTINGS, Curve, Figure, Mode, Scale, Setting, known
from privsgp.research.provenance import provenance
from privsgp.runs import config as configs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from privsgp.research.bench import Bench, Several
    from privsgp.runs.config import Config

VERSION = 1
TEST = 1000  # test samples of a small copy


def reproduce(
    name: str,
    bench: Bench,
    *,
    scale: Scale = "small",
    mode: Mode = "published",
    seeds: int = 2,
    changes: Sequence[str] = (),
    max_steps: int | None = None,
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Run a figure and return what its JSON holds; the same call goes on with what is there.

    `changes` are KEY=VALUE settings for every curve; curves of more than `max_steps` steps are left out, and
    where `only` names some (`_named`) all others.

    Guarantee: every ε is the certified accountant's, whatever noise the mode takes.
    Assumes: simulation.
    """
    figure, setting = known(name), SETTINGS[_data(name), scale]
    refuse_below_one(seeds=seeds, max_steps=max_steps)
    planned = figure.curves(setting, mode)
    curves = [c for c in planned if max_steps is None or c.values["algorithm"]["steps"] <= max_steps]
    if not curves:
        raise Refused(f"--max-steps {max_steps}", f"{name} has no curve with so few steps")
    curves = _named(curves, only) if only else curves
    chosen = {curve.key: configs.parse(curve.values, changes) for curve in curves}
    device_name(chosen[curves[0].key].engine.device)  # refused here too, though every run may be done already
    bench = dataclasses.replace(
        bench, out=bench.out / f"{name}-{mode}-{scale}", data_dir=_data_dir(setting, bench, chosen),
        jobs=bench.jobs or setting.jobs,
    )  # fmt: skip
    runs = _run(figure, setting, chosen, bench, seeds)
    return judged({
        "format": "privsgp-figure",
        "version": VERSION,
        "simulation": True,
        "name": name,
        "scale": scale,
        "mode": mode,
        "seeds": seeds,
        "changes": list(changes),
        **provenance(chosen[curves[0].key].engine.device),
        "curves": [_told(curve, runs[curve.key]) for curve in curves],
    })  # fmt: skip


def _named(curves: list[Curve], only: Sequence[str]) -> list[Curve]:
    """Return the curves with these labels; what is no label names those in which it stands before the comma."""
    keys: set[str] = set()
    for words in only:
        same = [c.key for c in curves if c.label == words] or [c.key for c in curves if c.label.startswith(f"{words},")]
        if not same:
            raise Refused(f"--only {words!r}", f"take some of {'; '.join(curve.label for curve in curves)}")
        keys |= set(same)
    return [curve for curve in curves if curve.key in keys]


def judged(told: dict[str, Any]) -> dict[str, Any]:
    """Return a figure's JSON with what the paper says of it and whether its curves bear that out.

    `scaled` is there where a curve of ours was run: the same claim, with ours in the place of the paper's.
    """
    figure, setting = known(told["name"]), SETTINGS[_data(told["name"]), told["scale"]]
    planned, there = figure.curves(setting, told["mode"]), {curve["label"]: curve for curve in told["curves"]}
    claim = partial(figure.claim, figure.subject(setting))
    printed = [curve for curve in planned if not curve.instead_of]
    run = {curve.key: Found.told(there[curve.label]) for curve in planned if curve.label in there}
    verdict = claim({curve.key: run[curve.key] for curve in printed if curve.key in run})
    left_out = ", ".join(curve.label for curve in printed if curve.key not in run)
    words = verdict.words + (f"; left out: {left_out}" if left_out else "")
    found: dict[str, Any] = {"paper": figure.says, "holds": verdict.holds, "found": words}
    if ours := {curve.instead_of: run[curve.key] for curve in planned if curve.instead_of and curve.key in run}:
        scaled = claim({curve.key: run[curve.key] for curve in printed if curve.key in run} | ours)
        found |= {"scaled": {"holds": scaled.holds, "found": scaled.words}}
    about = {key: value for key, value in told.items() if key not in ("curves", "scaled")}
    return about | found | {"curves": told["curves"]}  # a reader finds the verdict before them


def save(told: dict[str, Any], folder: Path) -> None:
    """Write a figure to NAME-MODE-SCALE.json, and draw it to .png and .svg beside that."""
    stem = f"{told['name']}-{told['mode']}-{told['scale']}"
    write_json(folder / f"{stem}.json", told)
    for suffix in ("png", "svg"):
        picture.draw_figure(told, folder / f"{stem}.{suffix}")


def _data(name: str) -> str:
    return name.partition("-")[0]


def _data_dir(setting: Setting, bench: Bench, chosen: dict[str, Config]) -> Path | None:
    """Return where the data lie; a small copy is made where the figure wants one."""
    if setting.samples is None or all(config.data.name != setting.file for config in chosen.values()):
        return bench.data_dir
    _small_copy(setting.data, setting.samples, bench.out / "data" / setting.file, bench.data_dir)
    return bench.out / "data"


def _run(figure: Figure, setting: Setting, chosen: dict[str, Config], bench: Bench, seeds: int) -> dict[str, Several]:
    if not (figure.tuned and setting.tuned):
        return bench.several(chosen, range(seeds), bench.out.name)
    base = setting.step_size(setting.nodes, setting.best)
    rows = compare.rows(chosen, [factor * base for factor in compare.FACTORS], bench, seeds=seeds)
    return {row.algorithm: row.runs for row in rows}


def _told(curve: Curve, runs: Several) -> dict[str, Any]:
    p = runs.config.privacy
    spreads = {key: runs.of(key) for key in ("train_loss", "test_loss")} | {"accuracy": runs.accuracy}
    return {
        "label": curve.label, "line": curve.line, "x": curve.x, "config": runs.config.model_dump(mode="json"),
        "steps": runs.config.algorithm.steps, "step_size": compare.base_step_size(runs.config),
        "sigma": (runs.summary.get("sigma") or [None])[0],
        "epsilon_certified": runs.epsilon, "epsilon_nominal": p.epsilon if p.nominal else None,
        "diverged": runs.diverged,
        "seconds": sum(run.summary["seconds"] for run in runs.runs if run.summary is not None),
        **{key: None if spread is None else spread.as_json() for key, spread in spreads.items()},
        "loss_curve": runs.curve("train_loss"), "accuracy_curve": runs.curve(runs.accuracy_key),
    }  # fmt: skip


def _small_copy(name: str, samples: int, path: Path, data_dir: Path | None) -> None:
    """Write a part of the data set to an .npz file, unless it is there; a fixed seed decides which samples.

    CIFAR-10's pixels are averaged two by two.
    """
    if path.exists():
        return
    whole = data.load(name, data_dir=data_dir)
    rng = np.random.Generator(np.random.Philox(0))
    arrays: dict[str, Any] = {"classes": np.int64(10)}
    for end, x, y, count in (("", whole.x, whole.y, samples), ("_test", whole.x_test, whole.y_test, TEST)):
        if x is None or y is None:
            raise TypeError(f"{name} has no test data")
        rows = rng.permutation(len(y))[:count]
        arrays |= {f"x{end}": _halved(x[rows]) if name == "cifar10" else x[rows], f"y{end}": y[rows]}
    path.parent.mkdir(parents=True, exist_ok=True)

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)

    replace(path, save)


def _halved(images: NDArray[Any]) -> NDArray[np.float32]:
    """Average squares of two by two pixels."""
    n, channels, height, width = images.shape
    squares = images.reshape(n, channels, height // 2, 2, width // 2, 2)
    halved: NDArray[np.float32] = squares.mean((3, 5), dtype=np.float32)
    return halved
