"""What a plan takes: a table of docs/planner.md.

Processor seconds of `privsgp plan`, imports included.

    python experiments/planning.py --data-dir DATA                # run, write the JSON and the table of the page
    python experiments/planning.py --page docs/planner.md         # write the table alone
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pages

from privsgp.files import write_json
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results" / "planning.json", ROOT / "docs" / "planner.md"
DIGITS, MLP = "examples/digits.toml", "experiments/configs/mnist-mlp.toml"
OPEN = [f"algorithm.{key}=auto" for key in ("batch", "steps", "step_size")]
UNEQUAL = f"privacy.epsilon={[round(0.5 + 0.03 * node, 2) for node in range(50)]}"
PLANS: dict[str, tuple[str, list[str]]] = {
    "`examples/digits.toml`": (DIGITS, []),
    'the same with batch, steps and step size `"auto"`': (DIGITS, OPEN),
    "the same with `difference_scale = 1`": (DIGITS, ["algorithm.difference_scale=1"]),
    'MNIST, 50 nodes, MLP-64, all three `"auto"`': (MLP, OPEN),
    "the same with 50 different budgets": (MLP, [*OPEN, UNEQUAL]),
}


def seconds(words: str, data: Path | None) -> float:
    """Return the processor time of a plan from the command line."""
    file, changes = PLANS[words]
    line = [sys.executable, "-m", "privsgp", "plan", str(ROOT / file), *(f"--set={one}" for one in changes)]
    line += [] if data is None else ["--data-dir", str(data)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own command
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def part(told: dict[str, Any]) -> str:
    """Return the table of times, and where it comes from."""
    lines = ["| `privsgp plan` | processor time |", "|---|---|"]
    lines += [f"| {words} | {spent:.1f} s |" for words, spent in told["seconds"].items()]
    return "\n".join([*lines, "", pages.commits([told])])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__, data=True)


def main() -> None:
    """Run, or write the page."""
    options = arguments()
    if options.page is None:
        spent = {words: seconds(words, options.data_dir) for words in PLANS}
        made = {"simulation": True, "seconds": spent}
        write_json(RESULTS, made | provenance("cpu"))
    pages.put(options.page or PAGE, "planning", part(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
