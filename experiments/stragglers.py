"""What not waiting is worth: the demo's digits in a ring with one slow node, asynchronous and in step.

python experiments/stragglers.py                              # run, write the JSON and the table of the page
python experiments/stragglers.py --page docs/asynchrony.md    # write the table alone
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import pages

from privsgp.files import write_json
from privsgp.runs import config, problem, train
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results" / "stragglers.json", ROOT / "docs" / "asynchrony.md"
SEEDS = (0, 1, 2, 3, 4)
KINDS = {
    "`adp2-sgd`, 150": [],
    "`privsgp`, 150": ["algorithm.name=privsgp"],
    "`privsgp`, 36: about the time of the first": ["algorithm.name=privsgp", "algorithm.steps=36"],
}

Row = dict[str, Any]


def measured(words: str, out: Path) -> Row:
    """Return a row: what each seed's run gave, and the ranges of releases and noise over all nodes and seeds."""
    found = []
    for seed in SEEDS:
        asked = config.read(ROOT / "examples" / "stragglers.toml", [*KINDS[words], f"seed={seed}", "engine.device=cpu"])
        found.append(train.run(asked, problem.load_problem(asked), out / str(seed)).summary)
    releases, sigmas = ([one for summary in found for one in summary[key]] for key in ("releases", "sigma"))
    least = [min(summary["releases"]) for summary in found]
    return {
        "words": words, "seconds": [summary["virtual_seconds"] for summary in found],
        "accuracy": [summary["test_accuracy"] for summary in found],
        "worst": [summary["worst_node_accuracy"] for summary in found],
        "slowest": [min(least), max(least)], "most": max(releases), "sigma": [min(sigmas), max(sigmas)],
    }  # fmt: skip


def part(told: dict[str, Any]) -> str:
    """Return what the page has between its marks."""
    lines = ["| `algorithm.name`, `steps` | virtual seconds | test accuracy | worst node | releases of a node | σ |"]
    lines.append("|---|---|---|---|---|---|")
    for row in told["rows"]:
        spent = f"{mean(row['seconds']):.0f} ± {stdev(row['seconds']):.0f}"
        rates = " | ".join(
            f"{100 * mean(row[key]):.1f} ± {100 * stdev(row[key]):.1f} %" for key in ("accuracy", "worst")
        )
        (low, high), most = row["slowest"], row["most"]
        made = f"{most}" if low == most else f"{low} to {high} (slow), up to {most}"
        noise = " to ".join(f"{one:.3f}" for one in row["sigma"])
        lines.append(f"| {row['words']} | {spent} | {rates} | {made} | {noise} |")
    return "\n".join([*lines, "", pages.commits([told])])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__)


def main() -> None:
    """Run, or write the page."""
    if (page := arguments().page) is None:
        with tempfile.TemporaryDirectory() as out:
            rows = [measured(words, Path(out) / str(number)) for number, words in enumerate(KINDS)]
        write_json(RESULTS, {"simulation": True, "seeds": SEEDS, "rows": rows} | provenance("cpu"))
    pages.put(page or PAGE, "stragglers", part(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
