"""The commands of this package: `compare` and `reproduce`.

privsgp finds `add_to` through the entry-point group `privsgp.commands`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privsgp import later
from privsgp.cli_data import Changes, DataDir, Json, about, configured, listed, note, numbers
from privsgp.errors import Refused, refuse_below_one
from privsgp.report.terminal import err, show, stage, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

Jobs = Annotated[int | None, typer.Option(help="Runs at a time, a thread each; default: one per core.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (compare, reproduce):
        app.command(**about(command.__name__))(command)


@contextlib.contextmanager
def _going_on() -> Iterator[None]:
    """Say after Ctrl-C how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        err.print("stopped: the same command continues from here", soft_wrap=True)
        raise typer.Exit(130) from None


def compare(
    config: Annotated[Path, typer.Argument(help="run.toml, with a seed and a budget.")],
    algorithms: Annotated[str, typer.Option(help="Names with commas between; `local` is always compared too.")],
    changes: Changes = None,
    seeds: Annotated[int, typer.Option(help="Runs of every method that are reported.")] = 3,
    tuning_seeds: Annotated[int, typer.Option(help="Runs of every step size that is tried, with other seeds.")] = 1,
    step_sizes: Annotated[str, typer.Option(help="Numbers with commas between; default: around the config's.")] = "",
    jobs: Jobs = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Default runs/<name>-compare.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Compare methods at one certified budget, each at its best step size. It continues after Ctrl-C."""
    settings = configured(config, changes)
    from privsgp.engine.folder import Folder
    from privsgp.files import write_json
    from privsgp_research import compare as comparing
    from privsgp_research import picture
    from privsgp_research.bench import Bench
    from privsgp_research.shown import show_comparison

    out, names = folder or Path("runs") / f"{settings.name}-compare", listed(algorithms)
    if moved := comparing.moved(settings, names):
        note(f"on a ring, not on graph.name = {settings.graph.name!r}: {', '.join(moved)} (links must go both ways)")
    refuse_below_one(seeds=seeds, tuning_seeds=tuning_seeds)
    bench = Bench(out, data_dir, jobs, stage)
    with _going_on(), Folder(out).locked():
        grid = numbers("step-sizes", step_sizes)
        result = comparing.compare(settings, names, bench, seeds=seeds, tuning_seeds=tuning_seeds, step_sizes=grid)
        write_json(out / "comparison.json", result)
        picture.draw_comparison(result, out / "comparison.png")
    tell(result, show_comparison, result, as_json=as_json)
    err.print(f"comparison.json and the runs are in {out}", soft_wrap=True)


def reproduce(
    name: Annotated[str, typer.Argument(help="A figure, or all; --list names them.")] = "",
    listed: Annotated[bool, typer.Option("--list", help="Name all figures, with what the paper claims.")] = False,
    scale: Annotated[str, typer.Option(help="small (minutes on a laptop) or full (as published; GPU).")] = "small",
    mode: Annotated[str, typer.Option(help="published, certified or both")] = "both",
    seeds: Annotated[int, typer.Option(help="Runs of every curve.")] = 2,
    folder: Annotated[Path, typer.Option("--out", help="The folder of figures and runs.")] = Path("figures"),
    data_dir: Annotated[Path | None, typer.Option(help="Folder of MNIST and CIFAR-10; default PRIVSGP_DATA.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    jobs: Jobs = None,
    max_steps: Annotated[int | None, typer.Option(help="Skip curves with more steps.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, for every curve.")] = None,
    as_json: Json = False,
) -> None:
    """Reproduce the paper's figures, and judge its claims. It continues after Ctrl-C."""
    with later.package("torch"):
        from privsgp_research.figures import MODES, NAMES, SCALES, known, listing

    if listed:
        claims = [{"name": figure, "claim": claim} for figure, claim in listing()]
        tell(claims, show, "figures", listing(), as_json=as_json)
        return
    refuse_below_one(seeds=seeds, max_steps=max_steps)
    for option, value, choices in (("scale", scale, SCALES), ("mode", mode, (*MODES, "both"))):
        if value not in choices:
            raise Refused(f"--{option} {value} is unknown", f"take one of {', '.join(choices)}")
    names = NAMES if name == "all" else [name]
    for one in names:
        known(one)
    from privsgp.engine.folder import Folder
    from privsgp_research import reproduce as figures
    from privsgp_research.bench import Bench
    from privsgp_research.shown import show_figure

    bench, changed = Bench(folder, data_dir, jobs, stage), [f"engine.device={device}", *(changes or [])]
    with _going_on(), Folder(folder).locked():
        for one, m in [(one, m) for one in names for m in MODES if mode in (m, "both")]:
            result = figures.reproduce(one, bench, scale, m, seeds=seeds, max_steps=max_steps, changes=changed)
            figures.save(result, folder)
            tell(result, show_figure, result, as_json=as_json)
