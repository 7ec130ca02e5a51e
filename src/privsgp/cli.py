"""The command line. Results go to stdout, all else to stderr; bad input ends with status 2 and nothing written."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from privsgp import __version__, cli_account, cli_data, cli_models, cli_sites, later, plugins
from privsgp.cli_data import Changes, DataDir, Json, about, note
from privsgp.errors import Diverged, Refused, Stopped, mending
from privsgp.files import finite
from privsgp.report import terminal
from privsgp.report.terminal import bar, doing, err, tell


class _Commands(typer.core.TyperGroup):
    """All commands, in the order of their panels. An interrupted run says how to continue; typer would say nothing."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer's own
        known = {name: position for position, name in enumerate(cli_data.ORDER)}
        return sorted(super().list_commands(ctx), key=lambda name: known.get(name, len(known)))

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own
        try:
            return super().invoke(ctx)
        except Stopped as stopped:
            there = "a checkpoint is kept: continue with the same command and --resume"
            none = "there is no checkpoint (none was due, or engine.checkpoint_every = 0): the same command starts over"
            err.print(f"{stopped}; {there if stopped.kept else none}", soft_wrap=True)
            raise typer.Exit(stopped.status) from None


app = typer.Typer(
    cls=_Commands, help="Private learning without a server.", no_args_is_help=True, pretty_exceptions_enable=False
)
cli_models.add_to(app)
cli_account.add_to(app)
cli_data.add_to(app)
cli_sites.add_to(app)


@functools.cache
def command_line() -> typer.Typer:
    """Return all commands: privsgp's own, then those that installed packages offer."""
    for entry in plugins.offered(plugins.COMMANDS).values():
        plugins.load(entry)(app)
    return app


def main() -> None:
    """Run the command line; each kind of failure has a status of its own (docs/reference/exit-status.md)."""
    try:
        command_line()()
    except Refused as refused:
        terminal.show_end(refused.what, f"  → {refused.remedy}")
        sys.exit(2)
    except Diverged as diverged:
        terminal.show_end(str(diverged))
        sys.exit(4)
    except OSError as error:
        resume = ", with --resume if the run has begun" if sys.argv[1:2] == ["train"] else ""
        again = f"No file is half-written: run the same command again{resume}"
        terminal.show_end(str(error), f"  → {mending(error, 'find out why the system refused it')}. {again}")
        sys.exit(6)


def _version(asked: bool) -> None:  # noqa: FBT001 - typer hands it in
    if asked:
        typer.echo(f"privsgp {__version__}")
        raise typer.Exit


@app.callback()
def privsgp(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Private learning without a server."""


@app.command(**about("train"))
def train(
    config: Annotated[Path, typer.Argument(help="run.toml")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change a key of run.toml: KEY=VALUE in TOML. KEY= removes it.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/<name>.")] = None,
    data_dir: DataDir = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
    moved: Annotated[
        bool,
        typer.Option("--moved", help="With --resume: the run folder comes from another disk, and is no copy."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a model over a network of nodes, each with its own privacy budget."""
    settings = cli_data.configured(config, changes)
    with later.package("torch"):
        from privsgp.engine.folder import refuse_used

    run_folder = folder or Path("runs") / settings.name
    if "WORLD_SIZE" not in os.environ:  # processes of torchrun refuse together, once they have met
        refuse_used(run_folder, resume=resume, secret=settings.secret)
    from privsgp.planner import planning
    from privsgp.report import page
    from privsgp.runs import problem as problems
    from privsgp.runs import train as training
    from privsgp.transport import rendezvous

    world = rendezvous.join()
    if not world.rank:  # of several processes the first speaks
        note(*([training.resume_note(run_folder)] if resume else []))
    with doing("reading the data", quiet=world.rank > 0) as say:
        problem = problems.load_problem(settings, data_dir, world)
        settings, plan = planning.with_choices(
            settings, problem, run_folder, resume=resume, world=world, data_dir=data_dir, say=say
        )
    problem = problems.at_start(settings, problem)
    if plan is not None:
        err.print(f"planned: {planning.described(plan)}", soft_wrap=True)
    note(*problems.notes(settings, problem, world))
    terminal.show_log()
    with bar(settings.algorithm.steps) as watch:
        result = training.run(
            settings, problem, run_folder, resume=resume, moved=moved, watch=watch, plan=plan, world=world,
        )  # fmt: skip
    if not world.rank:
        page.leave(result.folder, result.summary)
        tell(result.summary, terminal.show_run, result.view, as_json=as_json)


@app.command(**about("plan"))
def plan(
    config: Annotated[Path, typer.Argument(help="run.toml")],
    changes: Changes = None,
    data_dir: DataDir = None,
    write: Annotated[bool, typer.Option("--write", help="Write the choices into run.toml.")] = False,
    link: Annotated[float, typer.Option(min=0.001, help="Mbit/s between sites, for the minutes of `join`.")] = 10.0,
    as_json: Json = False,
) -> None:
    """Choose steps, noise and step size for a budget, before training."""
    settings = cli_data.configured(config, changes or [], planned=True)
    from privsgp.planner import planning

    with doing("reading the data", quiet=as_json) as say:
        made = dataclasses.replace(planning.plan(settings, data_dir, say=say), link=link)
    if write:
        from privsgp.runs.first import write_values

        write_values(config, planning.written(settings, made))
        err.print(f"written to {config}", soft_wrap=True)
    tell(made.as_json(), terminal.show_plan, made, as_json=as_json)


@app.command(**about("audit"))
def audit(
    config: Annotated[Path, typer.Argument(help="run.toml")],
    changes: Changes = None,
    data_dir: DataDir = None,
    canaries: Annotated[int | None, typer.Option(help="Canaries on each node; default: as many as fit.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the canaries' coins.")] = 0,
    confidence: Annotated[
        float, typer.Option(min=0, max=1, help="Of all statements about all nodes together.")
    ] = 0.9999,
    observations: Annotated[int, typer.Option(help="Number of (canary, step) pairs at each node.")] = 50_000,
    as_json: Json = False,
) -> None:
    """Attack runs of this configuration on made-up data: a lower bound on ε, or an alarm (status 3)."""
    settings = cli_data.configured(config, changes)
    from privsgp.audit.audit import audit as attack

    try:
        report = attack(settings, data_dir, canaries, seed, confidence, observations, terminal.stage)
    except KeyboardInterrupt:
        err.print("audit stopped: the same command starts it again", soft_wrap=True)
        raise typer.Exit(130) from None
    tell(report.to_json(), terminal.show_audit, report, as_json=as_json)
    if report.alarm:
        raise typer.Exit(3)


@app.command(**about("ledger"))
def ledger(
    path: Annotated[
        Path, typer.Argument(help="A run folder, a ledger folder, or one ledger file.", callback=cli_data.there)
    ],
    as_json: Json = False,
) -> None:
    """Check the ledgers of a run, and recompute each node's ε. Status 3 if one is above its budget."""
    from privsgp.accounting.statements import statements

    found = statements(path)
    if as_json:
        typer.echo(json.dumps([statement.to_json() for statement in found]))
    else:
        from privsgp.sites import signed

        terminal.show_statements(found)
        if (agreed := signed.read(path)) is not None:
            err.print(agreed.text, soft_wrap=True)
    if above := [s.name for s in found if s.above]:
        err.print(f"privsgp: ε spent is above its budget: {', '.join(above)}", style="bold red", soft_wrap=True)
        raise typer.Exit(3)


@app.command(**about("budget"))
def budget(as_json: Json = False) -> None:
    """Show the total ε of each private data set over all runs, and the rest that the policy allows."""
    from privsgp.accounting import policy as policies
    from privsgp.accounting.book import Book

    found = Book().data_sets()
    policy = policies.read(policies.default_home() / "policy.toml")
    if as_json:
        typer.echo(json.dumps([
            {"records": one.records, "relation": one.relation, "epsilon": finite(one.spent.epsilon),
             "delta": one.spent.delta, "runs": [dataclasses.asdict(entry) for entry in one.entries]}
            for one in found
        ]))  # fmt: skip
    else:
        terminal.show_budget(found, None if policy is None else policy.epsilon_total)


@app.command(**about("report"))
def report(
    path: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run or a description.", callback=cli_data.there)
    ],
    file: Annotated[Path | None, typer.Option("--out", help="Default: report.html in the run's folder.")] = None,
) -> None:
    """Write one page about a finished run: metrics, privacy, network, and how to repeat it. Or about a description."""
    from privsgp.report import page

    out = file or path / page.NAME
    page.write(path, out)
    err.print(f"written to {out}", soft_wrap=True)


@app.command(**about("dossier"))
def dossier(
    path: Annotated[
        Path, typer.Argument(metavar="RUN|STUDY", help="A run's folder or a *.study file.", callback=cli_data.there)
    ],
    folder: Annotated[Path, typer.Option("--out", help="A new folder.")] = Path("dossier"),
    attacked: Annotated[
        Path | None, typer.Option("--audit", help="Output of `privsgp audit run.toml --json`.", callback=cli_data.there)
    ] = None,
) -> None:
    """Write the folder that a data-protection officer files. No legal advice: open questions are listed."""
    from privsgp.report.dossier import write_dossier

    questions = write_dossier(path, folder, attacked)
    err.print(f"written to {folder}: {len(questions)} questions are open", soft_wrap=True)
    for question in questions:
        err.print(f"open: {question}", soft_wrap=True)
