"""What weights of classes do under a clip: sensitivity and specificity where one record in ten is positive.

python experiments/class_weights.py                              # run, write the JSON and the table of the page
python experiments/class_weights.py --page docs/howto/data.md    # write the table alone
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pages
import torch
from torch import nn

import privsgp
from privsgp.files import write_json
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    import argparse

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "results" / "class_weights.json", DOCS / "howto" / "data.md"
STEP_SIZE = {0.3: 2.0, 3.0: 0.3, 30.0: 0.3}  # by clip
WEIGHTS, SEEDS = (1.0, 9.0), (0, 1, 2)
SETTING = {"sites": 4, "records": 2000, "features": 10, "positive": 0.1, "epsilon": 2.0, "batch": 400, "steps": 100}

Row = dict[str, Any]


def records(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return made-up records with ten features, three of which tell."""
    rng = np.random.default_rng(seed)
    y = (rng.random(count) < SETTING["positive"]).astype(np.int64)
    x = rng.standard_normal((count, int(SETTING["features"]))).astype(np.float32)
    x[:, :3] += 0.9 * y[:, None]
    return x, y


def rates(clip: float, weight: float, seed: int) -> tuple[float, float]:
    """Return sensitivity and specificity of a linear model that four sites learnt."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        result = privsgp.train(
            nn.Linear(int(SETTING["features"]), 2),
            [records(int(SETTING["records"]), 10 * seed + site) for site in range(int(SETTING["sites"]))],
            loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, weight]), reduction="none"),
            classes=2,
            out=Path(folder) / "run",
            seed=seed,
            graph="exponential",
            privacy={"epsilon": SETTING["epsilon"], "clip": clip},
            algorithm={
                "name": "privsgp",
                "batch": SETTING["batch"],
                "steps": int(SETTING["steps"]),
                "step_size": STEP_SIZE[clip],
            },
            progress=False,
        )
    x, y = records(20_000, 99)
    said = result.model(torch.from_numpy(x)).argmax(1).numpy()
    return float(said[y == 1].mean()), float(1 - said[y == 0].mean())


def measured(clip: float, weight: float) -> Row:
    """Return a row: both rates of each seed."""
    sensitivity, specificity = zip(*(rates(clip, weight, seed) for seed in SEEDS), strict=True)
    return {"clip": clip, "weight": weight, "sensitivity": list(sensitivity), "specificity": list(specificity)}


def part(told: dict[str, Any]) -> str:
    """Return what the page has between its marks."""
    return table(told["rows"]) + "\n" + pages.commits([told])


def table(rows: list[Row]) -> str:
    """Return a line for each clip, a column for each weight: the means over the seeds."""
    lines = ["| clip | without weights | with weights 1 : 9 |", "|---|---|---|"]
    for clip in STEP_SIZE:
        here = {row["weight"]: row for row in rows if row["clip"] == clip}
        lines.append(f"| {clip:g} | " + " | ".join(_cell(here[weight]) for weight in WEIGHTS) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: Row) -> str:
    return f"{np.mean(row['sensitivity']):.2f}, {np.mean(row['specificity']):.2f}"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__)


def main() -> None:
    """Run, or write the page."""
    if (page := arguments().page) is None:
        rows = [measured(clip, weight) for clip in STEP_SIZE for weight in WEIGHTS]
        about = {"simulation": True, "setting": SETTING, "seeds": SEEDS, "step_size": STEP_SIZE}
        write_json(RESULTS, about | {"rows": rows} | provenance("cpu"))
    pages.put(page or PAGE, "class weights", part(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
