"""Make a figure of the paper again: run its curves, draw them, and say whether the paper's claim holds.

In mode "published" noise is the paper's and the certified ε of every curve stands in its legend; in mode "certified"
all curves have the same certified budget. A verdict is "holds", "does not hold", or "cannot be judged" if the claim's
own curve was skipped.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp import data, files
from privsgp.errors import Refused
from privsgp.runs import config as configs
from privsgp_research import compare, picture
from privsgp_research.claims import Found
from privsgp_research.figures import SETTINGS, Curve, Figure, Setting, known
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from privsgp.accounting.mechanisms import Accountant
    from privsgp.runs.config import Config
    from privsgp_research.bench import Bench, Several

VERSION = 1
TEST = 1000  # test samples of a small copy


def reproduce(
    name: str,
    bench: Bench,
    scale: str = "small",
    mode: Accountant = "published",
    *,
    seeds: int = 2,
    changes: Sequence[str] = (),
    max_steps: int | None = None,
) -> dict[str, Any]:
    """Run a figure and return what its JSON holds; the same call continues an interrupted one.

    `changes` are KEY=VALUE settings for every curve; curves of more than `max_steps` steps are left out.

    Guarantee: every ε is the certified accountant's, whatever noise the mode takes.
    Assumes: simulation.
    """
    figure, setting = known(name), SETTINGS[_data(name), scale]
    planned = figure.curves(setting, mode)
    curves = [c for c in planned if max_steps is None or c.values["algorithm"]["steps"] <= max_steps]
    if not curves:
        raise Refused(f"--max-steps {max_steps}", f"{name} has no curve with so few steps")
    chosen = {curve.key: configs.parse(curve.values, changes) for curve in curves}
    about = provenance(chosen[curves[0].key].engine.device)  # refuses a device that is not there, before anything runs
    out, data_dir = bench.out / f"{name}-{mode}-{scale}", bench.data_dir
    if setting.samples is not None and any(config.data.name == setting.file for config in chosen.values()):
        small_copy(setting.data, setting.samples, out / "data" / setting.file, data_dir)
        data_dir = out / "data"
    bench = dataclasses.replace(bench, out=out, data_dir=data_dir, jobs=bench.jobs or setting.jobs)
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
        **about,
        "curves": [_row(curve, runs[curve.key]) for curve in curves],
    })  # fmt: skip


def judged(result: dict[str, Any]) -> dict[str, Any]:
    """Return a figure's JSON with what the paper says of it and whether its curves bear that out.

    `scaled` is there where a curve of ours was run: the same claim, with ours in the place of the paper's.
    """
    figure, setting = known(result["name"]), SETTINGS[_data(result["name"]), result["scale"]]
    planned, there = figure.curves(setting, result["mode"]), {curve["label"]: curve for curve in result["curves"]}
    run = {curve.key: Found.of(there[curve.label]) for curve in planned if curve.label in there}
    printed = {curve.key: run[curve.key] for curve in planned if curve.key in run and not curve.instead_of}
    ours = {curve.instead_of: run[curve.key] for curve in planned if curve.key in run and curve.instead_of}
    subject = figure.subject(setting)
    holds, words = figure.claim(subject, printed)
    skipped = ", ".join(curve.label for curve in planned if curve.key not in run and not curve.instead_of)
    found: dict[str, Any] = {"paper": figure.says, "holds": holds}
    found["found"] = words + (f"; left out: {skipped}" if skipped else "")
    if ours:
        found["scaled"] = dict(zip(("holds", "found"), figure.claim(subject, printed | ours), strict=True))
    about = {key: value for key, value in result.items() if key not in ("curves", "scaled")}
    return about | found | {"curves": result["curves"]}  # a reader finds the verdict before them


def save(result: dict[str, Any], folder: Path) -> None:
    """Write a figure to NAME-MODE-SCALE.json, and draw it to .png and .svg beside that."""
    stem = f"{result['name']}-{result['mode']}-{result['scale']}"
    files.write_json(folder / f"{stem}.json", result)
    for suffix in ("png", "svg"):
        picture.draw_figure(result, folder / f"{stem}.{suffix}")


def _data(name: str) -> str:
    return name.partition("-")[0]


def _run(figure: Figure, setting: Setting, chosen: dict[str, Config], bench: Bench, seeds: int) -> dict[str, Several]:
    if not (figure.tuned and setting.tuned):
        return bench.several(chosen, range(seeds), bench.out.name)
    base = setting.step_size(setting.nodes, setting.best)
    rows = compare.rows(chosen, [factor * base for factor in compare.FACTORS], bench, seeds=seeds)
    return {row.algorithm: row.runs for row in rows}


def _row(curve: Curve, runs: Several) -> dict[str, Any]:
    p = runs.config.privacy
    return {
        "label": curve.label, "line": curve.line, "x": curve.x, "config": runs.config.model_dump(mode="json"),
        "steps": runs.config.algorithm.steps, "step_size": runs.config.algorithm.step_size,
        "sigma": (runs.summary.get("sigma") or [None])[0],
        "epsilon_certified": runs.epsilon, "epsilon_nominal": p.epsilon if p.nominal else None,
        "diverged": runs.diverged,
        "seconds": sum(run.summary["seconds"] for run in runs.runs if run.summary is not None),
        **runs.spreads("train_loss", "test_loss", "accuracy"),
        "loss_curve": runs.curve("train_loss"), "accuracy_curve": runs.curve(runs.accuracy_key),
    }  # fmt: skip


def small_copy(name: str, samples: int, path: Path, data_dir: Path | None) -> None:
    """Write some samples of MNIST or CIFAR-10 to an .npz file, unless it is there; a fixed seed decides which.

    CIFAR-10's pixels are averaged two by two.
    """
    if path.exists():
        return
    whole, rng = data.load(name, data_dir=data_dir), np.random.Generator(np.random.Philox(0))
    arrays: dict[str, Any] = {"classes": np.int64(10)}
    for end, x, y, count in (("", whole.x, whole.y, samples), ("_test", whole.x_test, whole.y_test, TEST)):
        if x is None or y is None:
            raise TypeError(f"{name} has no test data")
        rows = rng.permutation(len(y))[:count]
        arrays |= {f"x{end}": halved(x[rows]) if name == "cifar10" else x[rows], f"y{end}": y[rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(temporary := path.with_name(f"part-{path.name}"), **arrays)
    temporary.replace(path)


def halved(images: NDArray[Any]) -> NDArray[np.float32]:
    """Average squares of two by two pixels."""
    n, channels, height, width = images.shape
    squares = images.reshape(n, channels, height // 2, 2, width // 2, 2)
    return np.asarray(squares.mean((3, 5), dtype=np.float32))
