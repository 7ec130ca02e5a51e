"""What it costs that sites miss steps where noise is shared: the noise of the average, the accuracy, and nobody's ε.

The digits of the demo on a simulated bad network, ε = 0.5, 16 sites, 12 honest. A site that is down takes its half of
what it shares along, and its partners' halves stay. The noise is measured with σ = 100, which drowns all else, in what
an undisturbed run has, beside what the covariance says: of a step that m of n sites miss, (n − m)(D + m s²) is left of
n D. ε is read from the ledgers.

    python experiments/dropouts.py --out RUNS [--seeds 3]
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from statistics import mean

from privsgp.accounting.statements import statements
from privsgp.runs import build, config, problem, train

HERE = Path(__file__).parent
N, HONEST, STEPS = 16, 12, 150
SHARED = ["privacy.noise=pairwise", f"privacy.honest={HONEST}"]
LOUD = ["privacy.epsilon=", "privacy.sigma=100.0", "algorithm.name=privsgp"]
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


def ran(changes: list[str], crash: list[str], leave: list[str], out: Path) -> train.Result:
    """Train the demo with noise that is shared, over a network with faults."""
    asked = config.read(HERE.parent / "examples" / "digits.toml", [*changes, *SHARED])
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(tempfile.mkdtemp()))
    parser.add_argument("--seeds", type=int, default=3)
    told = parser.parse_args()
    print("| what happens | noise of the average, measured | expected | test accuracy | largest ε in the ledgers |")
    print("|---|---|---|---|---|")
    quiet = 0.0
    for row, (what, (crash, leave, missed)) in enumerate(FAULTS.items()):
        loud, private = [], []
        for seed in range(told.seeds):
            place = told.out / f"{row}-{seed}"
            loud.append(ran([*LOUD, f"seed={seed}"], crash, leave, place / "loud"))
            private.append(ran(["privacy.epsilon=0.5", f"seed={seed}"], crash, leave, place / "private"))
        noise = math.sqrt(mean(size(one) ** 2 for one in loud))
        quiet = quiet or noise
        accuracy = mean(one.summary["test_accuracy"] for one in private)
        epsilon = max(s.epsilon for one in private for s in statements(one.folder / "ledger"))
        ahead = expected(loud[0].summary, missed, len(leave))
        print(f"| {what} | {noise / quiet:.2f} | {ahead:.2f} | {accuracy:.1%} | {epsilon:.6f} |", flush=True)


if __name__ == "__main__":
    main()
