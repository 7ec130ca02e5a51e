"""What six made-up hospitals gain by joining: runs examples/hospitals.py and keeps what it finds.

python experiments/hospitals.py                              # run, write the JSON and the table of the page
python experiments/hospitals.py --page docs/results.md       # write the table alone
"""

from __future__ import annotations

import json
import runpy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pages

from privsgp.files import write_json
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results" / "hospitals.json", ROOT / "docs" / "results.md"
STEPS = 300


def measured(steps: int) -> dict[str, Any]:
    """Run the example."""
    example = runpy.run_path(str(ROOT / "examples" / "hospitals.py"))
    with tempfile.TemporaryDirectory() as folder:
        together, found = example["compare"](steps, Path(folder))
    given = zip(example["RECORDS"], example["EPSILON"], found, strict=True)
    rows = [{"records": records, "epsilon": epsilon, **row} for records, epsilon, row in given]
    return {"simulation": True, "steps": steps, "together": together, "rows": rows}


def part(told: dict[str, Any]) -> str:
    """Return what the page has between its marks: a line for each hospital."""
    lines = ["| | records | ε | alone | together |", "|---|---|---|---|---|"]
    for number, row in enumerate(told["rows"]):
        accuracies = f"{100 * row['alone']:.1f} % | {100 * told['together']:.1f} %"
        lines.append(f"| {number} | {row['records']} | {row['epsilon']} | {accuracies} |")
    return "\n".join([*lines, "", pages.commits([told])])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__)


def main() -> None:
    """Run, or write the page."""
    if (page := arguments().page) is None:
        write_json(RESULTS, measured(STEPS) | provenance("auto"))
    pages.put(page or PAGE, "hospitals", part(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
