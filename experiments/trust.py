"""The tables of docs/trust.md that need no data but the demo's digits.

What ε is where fewer sites are honest; and what it costs that sites miss steps, on a
simulated bad network: a site that is down takes its half of what it shares along, and its partners' halves stay. There
the noise is measured with σ = 100, which drowns all else, in what an undisturbed run has, beside what the covariance
says: of a step that m of n sites miss, (n − m)(D + m s²) is left of n D. ε is read from the ledgers.

    python experiments/trust.py                          # run, write the JSON and the tables of the page
    python experiments/trust.py --page docs/trust.md     # write the tables alone
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import pages

from privsgp.accounting.statements import statements
from privsgp.files import write_json
from privsgp.research.provenance import provenance
from privsgp.runs import build, config, problem, train

Row = dict[str, Any]
if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results" / "trust.json", ROOT / "docs" / "trust.md"
N, HONEST, STEPS, SEEDS = 16, 12, 150, (0, 1, 2)
SHARED = ["privacy.noise=pairwise", f"privacy.honest={HONEST}", "engine.device=cpu"]
LOUD = ["privacy.epsilon=", "privacy.sigma=100.0", "algorithm.name=privsgp"]
CURVE = ["privacy.epsilon=0.5", "algorithm.final_mixing=4", "engine.device=cpu"]
SHOWN = (1, 2, 4, 8, 12, 16)
FAULTS: dict[str, tuple[list[str], list[str], list[int]]] = {  # how they are told, and how many steps miss m sites
    "nothing": ([], [], []),
    "one site misses a tenth of the steps": (["3@60+15"], [], [15]),
    "one site misses a quarter": (["3@60+37"], [], [37]),
    "one site misses half": (["3@60+75"], [], [75]),
    "four sites miss a tenth each, one after another": (
        ["3@15+15", "7@45+15", "9@75+15", "12@105+15"], [], [60],
    ),
    "four sites miss the same tenth": ([f"{i}@60+15" for i in (3, 7, 9, 12)], [], [0, 0, 0, 15]),
    "one site leaves for good half-way": ([], ["3@75"], [75]),
}  # fmt: skip


def demo(changes: list[str], out: Path) -> dict[str, Any]:
    """Train the demo and return the summary."""
    asked = config.read(ROOT / "examples" / "digits.toml", changes)
    return train.run(asked, problem.load_problem(asked), out).summary


def honest(out: Path) -> Row:
    """Return ε by how many sites are honest, what is left of the noise, and the accuracy beside independent noise's."""
    shared, alone = demo([*CURVE, *SHARED], out / "shared"), demo(CURVE, out / "alone")
    told = shared["pairwise"]
    left = told["average_sigma"] / (told["sigma_effective"] / math.sqrt(N))
    accuracies = {"shared": shared["test_accuracy"], "alone": alone["test_accuracy"]}
    return {"curve": told["curve"], "left": left, "accuracy": accuracies}


def ran(changes: list[str], crash: list[str], leave: list[str], out: Path) -> train.Result:
    """Train the demo with noise that is shared, over a network with faults."""
    asked = config.read(ROOT / "examples" / "digits.toml", [*changes, *SHARED])
    faults = build.simulated_faults(asked, drop=0.0, delay=0, crash=crash, leave=leave, staleness=64)
    return train.run(asked, problem.load_problem(asked), out, faults=faults)


def size(result: train.Result) -> float:
    """Return the root of the mean square of the average model."""
    squares = [p.detach().double().square().sum() for p in result.model.parameters()]
    return math.sqrt(float(sum(squares)) / sum(p.numel() for p in result.model.parameters()))


def expected(summary: dict[str, object], missed: list[int], gone: int) -> float:
    """Return the noise of the average, in that of an undisturbed run, as the covariance has it."""
    told = summary["pairwise"]
    assert isinstance(told, dict)  # noqa: S101
    own, pair = told["own_sigma"] ** 2, told["pair_sigma"] ** 2
    total, there = (STEPS - sum(missed)) * N * own, N - gone
    for m, steps in enumerate(missed, start=1):
        total += steps * (N - m) * (own + m * pair) * (N / there) ** 2
    return math.sqrt(total / (STEPS * N * own))


def measured(what: str, out: Path) -> Row:
    """Return a row: noise and accuracy of each seed, the largest ε, and the noise expected in an undisturbed run's."""
    crash, leave, missed = FAULTS[what]
    loud = [ran([*LOUD, f"seed={seed}"], crash, leave, out / f"loud-{seed}") for seed in SEEDS]
    private = [ran(["privacy.epsilon=0.5", f"seed={seed}"], crash, leave, out / f"private-{seed}") for seed in SEEDS]
    return {
        "what": what, "noise": [size(one) for one in loud], "expected": expected(loud[0].summary, missed, len(leave)),
        "accuracy": [one.summary["test_accuracy"] for one in private],
        "epsilon": max(s.epsilon for one in private for s in statements(one.folder / "ledger")),
    }  # fmt: skip


def parts(told: dict[str, Any]) -> dict[str, str]:
    """Return what the page has between its marks."""
    made = {"honest sites": _honest(told["honest"]), "drop-outs": _faults(told["rows"])}
    return {mark: "\n".join([*lines, "", pages.commits([told])]) for mark, lines in made.items()}


def _honest(told: Row) -> list[str]:
    curve, accuracy = dict(told["curve"]), told["accuracy"]
    cells = " | ".join(f"{math.ceil(100 * curve[h]) / 100:.2f}" for h in SHOWN)
    lines = ["| honest sites | " + " | ".join(map(str, SHOWN)) + " |", "|---" * (1 + len(SHOWN)) + "|"]
    words = f"""\
(1: you alone; ε rounded up.) The noise of the average is {told["left"]:.2f} of what independent noise leaves, and the
model's test accuracy is {100 * accuracy["shared"]:.1f} % where independent noise gives {100 * accuracy["alone"]:.1f} %
(seed 0)."""
    return [*lines, f"| ε | {cells} |", "", words]


def _faults(rows: list[Row]) -> list[str]:
    lines = ["| what happens | noise of the average | expected | test accuracy | largest ε in the ledgers |"]
    lines.append("|---|---|---|---|---|")
    noises = [math.sqrt(mean(one**2 for one in row["noise"])) for row in rows]
    for row, noise in zip(rows, noises, strict=True):
        sizes = f"{noise / noises[0]:.2f} | {row['expected']:.2f}"
        lines.append(f"| {row['what']} | {sizes} | {100 * mean(row['accuracy']):.1f} % | {row['epsilon']:.6f} |")
    return lines


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__)


def main() -> None:
    """Run, or write the page."""
    if (page := arguments().page) is None:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            rows = [measured(what, out / str(row)) for row, what in enumerate(FAULTS)]
            told = {"honest": honest(out), "rows": rows}
        write_json(RESULTS, {"simulation": True, "seeds": SEEDS} | told | provenance("cpu"))
    for mark, text in parts(json.loads(RESULTS.read_text())).items():
        pages.put(page or PAGE, mark, text)


if __name__ == "__main__":
    main()
