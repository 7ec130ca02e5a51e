"""How to have a run again: versions, commands, and the configuration in full."""

from __future__ import annotations

import shlex
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from privsgp.report.charts import table

if TYPE_CHECKING:
    from privsgp.report.comparison import Group
    from privsgp.report.reading import Run


def section(g: Group) -> str:
    """Return the part of the page that tells how to have the runs again."""
    run = g.first
    each = "\n".join(f"{_number(r)}  {_command(r)}" for r in g.runs)
    return (
        f"<section><h2>Repeat it</h2><pre>{escape(_commands(g))}</pre>"
        f"{table(['run', 'seed', 'started', 'privsgp', 'Python', 'torch'], [_made(r) for r in g.runs])}"
        f"<h3>{'Command it' if len(g.runs) == 1 else 'Commands they'} came from</h3><pre>{escape(each)}</pre>"
        f"<h3>Configuration</h3><pre>{escape(run.config.toml())}</pre></section>"
    )


def _commands(g: Group) -> str:
    """Return what to type to have the run again."""
    run, made = g.first, g.first.identity.get("versions", {})
    first = f"# privsgp {made.get('privsgp')}, torch {made.get('torch')}, Python {made.get('python')}"
    if run.config.model.name == "module":
        return f"{first}\n# run the Python program again that called privsgp.train; its configuration is below"
    seeds = "" if len(g.runs) == 1 or run.config.seed is None else " --set seed=…"
    processes = (run.identity.get("circumstances") or {}).get("processes", 1)
    start = "privsgp" if processes == 1 else f"torchrun --nproc-per-node {processes} -m privsgp"
    given = any(word.partition("=")[0] == "--data-dir" for r in g.runs for word in r.identity.get("command", []))
    where = " --data-dir DATA" if given else ""
    options = f"{where}{_fault_options(run)}{seeds}"
    return f"{first}\n{start} train config.toml --out again{options}   # config.toml is below"


def _fault_options(run: Run) -> str:
    f = run.faults
    if f is None:
        return ""
    options = [f"--drop {f.drop:g}", f"--delay {f.delay}", f"--staleness {f.staleness}"]
    options += [f"--crash {node}@{first}+{stop - first}" for node, first, stop in f.crashes]
    return " " + " ".join([*options, *(f"--leave {node}@{step}" for node, step in f.leaves)])


def _made(run: Run) -> list[str]:
    made = run.identity.get("versions", {})
    seed = "none: secret" if run.config.seed is None else str(run.config.seed)
    return [_number(run), seed, str(run.identity.get("started", "")),
            *(str(made.get(key, "")) for key in ("privsgp", "python", "torch"))]  # fmt: skip


def _number(run: Run) -> str:
    return str(run.identity.get("run", ""))[:8]


def _command(run: Run) -> str:
    told = run.identity.get("command", [])
    command = shlex.join([Path(word).name if i == 0 else word for i, word in enumerate(told)])
    return command.replace("__main__.py", "python -m privsgp", 1)
