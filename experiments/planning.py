"""What a plan takes, and how near noise alone comes: tables of docs/planner.md.

Processor seconds of `privsgp plan` with an empty cache, imports included; and the distance T = γK that is guessed by
noise alone (planner/noise_alone.py), beside what a rehearsal finds, or what was tuned.

    python experiments/planning.py --data-dir DATA                # run, write the JSON and the tables of the page
    python experiments/planning.py --page docs/planner.md         # write the tables alone
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pages

from privsgp.files import write_json
from privsgp.planner import settle
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.studies.provenance import provenance

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results" / "planning.json", ROOT / "docs" / "planner.md"
DIGITS, MLP, RESNET = (
    "examples/digits.toml",
    "experiments/configs/mnist-mlp.toml",
    "experiments/configs/cifar10-resnet.toml",
)
_CPU = "engine.device=cpu"
OPEN = [f"algorithm.{key}=auto" for key in ("name", "batch", "steps", "step_size")]
UNEQUAL = f"privacy.epsilon={[round(0.5 + 0.03 * node, 2) for node in range(50)]}"
PLANS: dict[str, tuple[str, list[str]]] = {
    "`examples/digits.toml`": (DIGITS, []),
    'the same with name, batch, steps and step size `"auto"`': (DIGITS, OPEN),
    "the same with `difference_scale = 1`": (DIGITS, ["algorithm.difference_scale=1"]),
    'MNIST, 50 nodes, MLP-64, all four `"auto"`': (MLP, OPEN),
    "the same with 50 different budgets": (MLP, [*OPEN, UNEQUAL]),
    "CIFAR-10, 16 nodes, ResNet-18, step size `\"auto\"`": (RESNET, ["algorithm.step_size=auto", _CPU]),
}  # fmt: skip
_WIDER = ["model.name=mlp", "model.hidden=64"]
_A9A = ["data.name=a9a", "privacy.epsilon=1.0", "algorithm.batch=1000"]
DISTANCES: dict[str, tuple[float, str, list[str]]] = {
    "digits, 16 nodes, logistic": (3.0, DIGITS, []),
    "the same, ε = 0.5": (0.5, DIGITS, []),
    "digits, 16 nodes, MLP-64": (3.0, DIGITS, _WIDER),
    "the same MLP, ε = 0.5": (0.5, DIGITS, _WIDER),
    "MNIST, 50 nodes, MLP-64": (1.0, MLP, []),
    "a9a, 16 nodes, logistic": (1.0, DIGITS, _A9A),
    "CIFAR-10, 16 nodes, ResNet-18": (3.0, RESNET, [_CPU]),
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


def distances(words: str, data: Path | None) -> dict[str, Any]:
    """Return T by noise alone and T rehearsed; of a model too large for that, the configuration's, which was tuned."""
    epsilon, file, changes = DISTANCES[words]
    given = configs.read(ROOT / file, [*changes, f"privacy.epsilon={epsilon}", "algorithm.name=privsgp"])
    asked = given.with_algorithm(step_size="auto")
    problem = problems.load_problem(asked, data)
    with mock.patch.object(settle, "LARGEST", 0):
        alone = settle.make(asked, problem, data)
    found = settle.make(asked, problem, data)
    tuned = given.algorithm.step_size * given.algorithm.steps if not found.rehearsed else None
    return {
        "words": words, "epsilon": epsilon, "alone": alone.chosen.distance,
        "rehearsed": found.chosen.distance if found.rehearsed else None, "tuned": tuned,
    }  # fmt: skip


def part(told: dict[str, Any]) -> str:
    """Return the tables of times and distances, and where they come from."""
    lines = ["| `privsgp plan` | processor time |", "|---|---|"]
    lines += [f"| {words} | {spent:.1f} s |" for words, spent in told["seconds"].items()]
    lines += ["", "| | ε | T by noise alone | T rehearsed, or tuned |", "|---|---|---|---|"]
    for row in told["distances"]:
        other = f"{row['tuned']:.0f} (tuned)" if row["rehearsed"] is None else f"{row['rehearsed']:.0f}"
        lines.append(f"| {row['words']} | {row['epsilon']:g} | {row['alone']:.0f} | {other} |")
    return "\n".join([*lines, "", pages.commits([told])])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__, data=True)


def main() -> None:
    """Run, or write the page."""
    options = arguments()
    if options.page is None:
        spent = {words: seconds(words, options.data_dir) for words in PLANS}
        found = [distances(words, options.data_dir) for words in DISTANCES]
        made = {"simulation": True, "seconds": spent, "distances": found}
        write_json(RESULTS, made | provenance("cpu"))
    pages.put(options.page or PAGE, "planning", part(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
