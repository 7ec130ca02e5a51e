"""The tables of docs/trust.md that need no data but the demo's digits: what ε is where fewer sites are honest.

The rows on sites that drop out were measured on a simulated network that privsgp no longer has; they are kept.

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

from privsgp.files import write_json
from privsgp.runs import config, problem, train
from privsgp_research.provenance import provenance

Row = dict[str, Any]
if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results" / "trust.json", ROOT / "docs" / "trust.md"
N, HONEST, STEPS, SEEDS = 16, 12, 150, (0, 1, 2)
SHARED = ["privacy.noise=pairwise", f"privacy.honest={HONEST}", "engine.device=cpu"]
CURVE = ["privacy.epsilon=0.5", "algorithm.final_mixing=4", "engine.device=cpu"]
SHOWN = (1, 2, 4, 8, 12, 16)


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


def parts(told: dict[str, Any]) -> dict[str, str]:
    """Return what the page has between its marks."""
    kept = told["drop_outs"]
    made = {"honest sites": (_honest(told["honest"]), told), "drop-outs": (_drop_outs(kept["rows"]), kept)}
    return {mark: "\n".join([*lines, "", pages.commits([of])]) for mark, (lines, of) in made.items()}


def _honest(told: Row) -> list[str]:
    curve, accuracy = dict(told["curve"]), told["accuracy"]
    cells = " | ".join(f"{math.ceil(100 * curve[h]) / 100:.2f}" for h in SHOWN)
    lines = ["| honest sites | " + " | ".join(map(str, SHOWN)) + " |", "|---" * (1 + len(SHOWN)) + "|"]
    words = f"""\
(1: you alone; ε rounded up.) The noise of the average is {told["left"]:.2f} of what independent noise leaves, and the
model's test accuracy is {100 * accuracy["shared"]:.1f} % where independent noise gives {100 * accuracy["alone"]:.1f} %
(seed 0)."""
    return [*lines, f"| ε | {cells} |", "", words]


def _drop_outs(rows: list[Row]) -> list[str]:
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
            told = {"honest": honest(Path(folder)), "drop_outs": json.loads(RESULTS.read_text())["drop_outs"]}
        write_json(RESULTS, {"simulation": True, "seeds": SEEDS} | told | provenance("cpu"))
    for mark, text in parts(json.loads(RESULTS.read_text())).items():
        pages.put(page or PAGE, mark, text)


if __name__ == "__main__":
    main()
