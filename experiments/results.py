"""Every number of the result pages, from one commit: run experiments/results.toml and write the pages.

    make results DATA=data [DEVICE=cuda] [JOBS=10] [ONLY="record comparison"]
    python experiments/results.py --list                 # the steps in order, how long they take, which pages, how old
    python experiments/results.py --pages                # run nothing: write all pages from the JSON files

After a kill the same command goes on: a command that has ended well is not begun again, and one that had not goes on
where it was, because runs that are done are not made again. Runs lie in a folder of their commit: what another version
of the code made never passes for this one's.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privsgp import data
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.files import write_json
from privsgp_research.provenance import commit

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PLAN = Path(__file__).with_suffix(".toml")
PAGES = (
    "experiments/figures_table.py docs/results docs/results.md",
    "experiments/comparison_table.py docs/results/comparison docs/results.md",
    "experiments/what_it_buys.py --page docs/results-accuracy.md",
    "experiments/trust.py --page docs/trust.md",
    "experiments/stragglers.py --page docs/asynchrony.md",
    "experiments/first_picture.py",
    "experiments/planner_mnist.py --page docs/planner.md",
    "experiments/planning.py --page docs/planner.md",
    "experiments/record.py --page docs/results-accuracy.md --short README.md",
    "experiments/single.py --page docs/results-accuracy.md",
    "experiments/class_weights.py --page docs/howto/data.md",
    "experiments/hospitals.py --page docs/results.md",
    "experiments/soteriafl.py --page docs/algorithms.md",
    "experiments/first_model.py --page docs/results-accuracy.md",
    "experiments/signals.py --page docs/planner.md",
    "experiments/persons.py --page docs/results-accuracy.md",
    "experiments/survival.py --page docs/howto/survival.md",
    "experiments/bytes.py --page docs/howto/bytes.md",
    "experiments/wire.py --page docs/performance.md",
    "experiments/additive.py --page docs/howto/additive.md",
    "experiments/private_evaluation.py --page docs/howto/evaluate.md",
    "experiments/first_study.py --page docs/howto/first-study.md",
    "benchmarks/flower.py --page docs/results-accuracy.md",
)

Step = dict[str, Any]
_NAMED = 4


def main() -> int:
    """Run the steps that are asked for, each command once, and write the pages after each step."""
    options = arguments()
    plan = tomllib.loads(options.plan.read_text())["step"]
    if unknown := set(options.only) - {step["name"] for step in plan}:
        raise SystemExit(f"--only {', '.join(sorted(unknown))}: take some of {', '.join(s['name'] for s in plan)}")
    steps = [step for step in plan if step["name"] in options.only or not options.only]
    if options.list:
        print("\n".join(line for step in steps for line in listed(step)))
    elif options.pages:
        write_pages()
    else:
        run(steps, options)
    return 0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs/results"), help="folder of the runs of all commits")
    parser.add_argument("--only", nargs="*", default=[], help="some steps")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--uncommitted", action="store_true", help="run code that no commit has, for a try")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--pages", action="store_true")
    return parser.parse_args()


def listed(step: Step) -> list[str]:
    """Return what a step is, and how old what it made is: files of one age in one line."""
    ages: dict[str, list[str]] = {}
    for path in made(step):
        ages.setdefault(age(path), []).append(path.relative_to(RESULTS).as_posix())
    head = f"{step['name']:15} {step['words']} ({step['rough']}) → {', '.join(step['pages'])}"
    return [head, *(f"{'':15}   {words}: {few(files)}" for words, files in ages.items())]


def few(files: list[str]) -> str:
    """Name some files, and count the others."""
    return ", ".join(files[:_NAMED]) + (f" and {len(files) - _NAMED} more" if len(files) > _NAMED else "")


def made(step: Step) -> list[Path]:
    """Return the JSON files that a step has written."""
    return sorted(path for pattern in step["makes"] for path in RESULTS.glob(pattern))


def age(path: Path) -> str:
    """Say by which commits a file's numbers were made, and whether src/ has changed since."""
    told = json.loads(path.read_text())
    commits = sorted(set(commits_in(told)))
    words = [since(one) for one in commits]
    if unnamed := [] if "commit" in told else [row for row in told.get("rows", ()) if not row.get("commit")]:
        words.append(f"{len(unnamed)} of {len(told['rows'])} name none")
    return "; ".join(words) if commits else "no commit is named"


def commits_in(value: object) -> Iterator[str]:
    """Yield the commits that a result names, wherever in it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict) and isinstance(value.get("commit"), str):
        yield value["commit"]
    for one in inner:
        yield from commits_in(one)


def since(made_by: str) -> str:
    """Say how many commits have changed src/ since one; a + is for files that no commit has."""
    ask = ["git", "rev-list", "--count", f"{made_by.rstrip('+')}..HEAD", "--", "src"]
    ran = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603  # words of ours
    if ran.returncode:
        return f"{made_by}, which is not here"
    return (
        f"{made_by}, as src/ is now"
        if ran.stdout.strip() == "0"
        else f"{made_by}, {ran.stdout.strip()} changes of src/ ago"
    )


def run(steps: list[Step], options: argparse.Namespace) -> None:
    """Run steps in the folder of this commit, alone there."""
    place = options.out.absolute() / folder_of(commit(), uncommitted=options.uncommitted)
    refuse_missing(steps, options.data_dir)
    with Folder(place).locked():
        for step in steps:
            for command in step["commands"]:
                once(command, step["name"], place, options)
            for found, target in step.get("copies", {}).items():
                copy(place / step["name"], found, ROOT / target)
            if options.plan == PLAN:
                write_pages()


def refuse_missing(steps: list[Step], data_dir: Path) -> None:
    """Refuse to begin hours of work where a later step would find something missing: data, a file, a package."""
    for kind, _, name in dict.fromkeys(one.partition(":") for step in steps for one in step.get("needs", ())):
        if kind == "data":
            data.load(name, data_dir=data_dir)
        elif kind == "file" and not (data_dir / name).exists():
            raise Refused(f"{data_dir / name} does not exist", "put it there: experiments/results.toml says what it is")
        elif kind == "package" and importlib.util.find_spec(name) is None:
            raise Refused(f"{name} is not installed", "make results installs it with pip install --no-deps")


def folder_of(made_by: str | None, *, uncommitted: bool) -> str:
    """Name the folder of a commit's runs; refuse code that no commit has: nobody could make its numbers again."""
    if made_by is None:
        raise Refused("no commit of this checkout is known", "name it: PRIVSGP_COMMIT=…")
    if made_by.endswith("+") and not uncommitted:
        raise Refused(
            f"files that decide numbers differ from commit {made_by[:-1]}", "commit it first, or try with --uncommitted"
        )
    return made_by


def once(command: str, name: str, place: Path, options: argparse.Namespace) -> None:
    """Run a command unless it has ended well before, and write down that it has."""
    kept = place / "done.json"
    done: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
    if command in done:
        say(f"{name}: done before, in {done[command]:.0f} s: {command}")
        return
    values = {"data": options.data_dir.absolute(), "out": place / name, "device": options.device, "jobs": options.jobs}
    argv = [part.format(python=sys.executable, **values) for part in shlex.split(command)]
    say(f"{name}: {shlex.join(argv)}")
    started = time.monotonic()
    subprocess.run(argv, cwd=ROOT, check=True)  # noqa: S603  # words of the plan
    write_json(kept, done | {command: round(time.monotonic() - started, 1)})


def copy(folder: Path, found: str, target: Path) -> None:
    """Copy what a step made to where pages look for it."""
    for path in sorted(folder.glob(found)):
        shutil.copyfile(path, target / path.name if target.is_dir() else target)


def write_pages() -> None:
    """Write every page anew from the JSON files."""
    for command in PAGES:
        subprocess.run([sys.executable, *command.split()], cwd=ROOT, check=True)  # noqa: S603  # words of ours


def say(words: str) -> None:
    """Print with the time of day."""
    print(time.strftime("%H:%M:%S"), words, flush=True)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except Refused as refused:
        raise SystemExit(f"{refused.what}\n  → {refused.remedy}") from None
    except subprocess.CalledProcessError as failed:
        raise SystemExit(
            f"{shlex.join(map(str, failed.cmd))}: status {failed.returncode}; the rest was not run"
        ) from None
