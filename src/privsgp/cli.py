"""The command line. Results go to stdout, all else to stderr; bad input ends with status 2 and nothing written."""

from __future__ import annotations

import functools
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, cast

import typer
import typer.core

from privsgp import __version__, cli_data, cli_models, cli_sites, later, plugins
from privsgp.accounting.shown import up
from privsgp.cli_data import Changes, DataDir, Json, note, one_of
from privsgp.errors import Diverged, Refused, Stopped, mending
from privsgp.files import finite
from privsgp.report.terminal import (
    bar,
    doing,
    err,
    show,
    show_audit,
    show_budget,
    show_end,
    show_formula,
    show_keys,
    show_lines,
    show_log,
    show_plan,
    show_run,
    show_statements,
    stage,
    tell,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from privsgp.accounting.accountant import Spent
    from privsgp.accounting.mechanisms import Accountant, Mechanism, Saga, Sampling
    from privsgp.accounting.pairwise import Sharing


class _Commands(typer.core.TyperGroup):
    """All commands; typer itself would end in silence where a run was interrupted."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own
        try:
            return super().invoke(ctx)
        except Stopped as stopped:
            there = "a checkpoint is kept: continue with the same command and --resume"
            none = "there is no checkpoint (none was due, or engine.checkpoint_every = 0): the same command starts over"
            err.print(f"{stopped}; {there if stopped.kept else none}", soft_wrap=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Commands, help="Private learning without a server.", no_args_is_help=True, pretty_exceptions_enable=False
)
cli_models.add_to(app)
cli_data.add_to(app)
cli_sites.add_to(app)

Algorithm = Annotated[str, typer.Option(help="privsgp-vr, privsgp, dp2-sgd, …: any that adds noise.")]
Samples = Annotated[int, typer.Option(help="J, the node's number of samples.")]
Batch = Annotated[float, typer.Option(help="b, the expected batch.")]
Steps = Annotated[int, typer.Option(help="K, the number of releases.")]
Clip = Annotated[float, typer.Option(help="G, the norm of one sample's clipped gradient.")]
Delta = Annotated[float, typer.Option(help="δ")]
DifferenceClip = Annotated[float | None, typer.Option(help="C of clipped differences; default: they are not clipped.")]
DifferenceScale = Annotated[str | None, typer.Option(help="θ, or auto as in training; default: the paper's, 1.")]
Period = Annotated[
    int | None, typer.Option(help="Releases from one anchor to the next (ldp-svrg, ldp-spider); default 10.")
]
Alpha = Annotated[float | None, typer.Option(help="α of dp-srm; default 0.1.")]
Aggregated = Annotated[
    int | None,
    typer.Option(help="Nodes whose messages are only seen as a sum (dp-srm); default 1: every message is seen."),
]
SamplingOption = Annotated[str, typer.Option(help="poisson or fixed")]
RelationOption = Annotated[str, typer.Option(help="zero-out or replace-one")]
AccountantOption = Annotated[str, typer.Option(help="certified, or published (the formula of the algorithm's paper)")]
C2 = Annotated[float, typer.Option(help="c₂ of the published formula.")]
Kappa = Annotated[float, typer.Option(help="κ, the slack of the arithmetic; runs count with 2⁻¹² or more in float32.")]
Coordinates = Annotated[
    int, typer.Option(help="d, the length of a message: counts what computed noise costs; 0 takes noise as ideal.")
]
NoiseOption = Annotated[str, typer.Option(help="independent, or pairwise: shared by pairs of nodes")]
Nodes = Annotated[int | None, typer.Option(help="n, of pairwise noise.")]
Honest = Annotated[int | None, typer.Option(help="h: nodes that are honest, oneself included; default: 3n/4.")]


SHARING = ("privsgp", "privsgp-vr", "privsgp-sag", "dp2-sgd")  # methods in whose steps shared noise cancels


@functools.cache
def command_line() -> typer.Typer:
    """Return all commands: privsgp's own, then those that installed packages offer."""
    for entry in plugins.offered(plugins.COMMANDS).values():
        plugins.load(entry)(app)
    return app


def main() -> None:
    """Run the command line; turn refusals into status 2."""
    try:
        command_line()()
    except Refused as refused:
        _end(refused.what, f"  → {refused.remedy}", status=2)
    except Diverged as diverged:
        _end(str(diverged))
    except OSError as error:
        goes_on = {
            "join": "the same command continues the run",
            "train": "run it again, with --resume if the run has begun",
        }
        again = goes_on.get(sys.argv[1] if len(sys.argv) > 1 else "", "then run the same command again")
        _end(
            str(error), f"  → {mending(error, 'find out why the system refused it')}. No file is half-written: {again}"
        )


def _end(what: str, *then: str, status: int = 1) -> NoReturn:
    show_end(what, *then)
    sys.exit(status)


def _version(asked: bool) -> None:  # noqa: FBT001 - typer hands it in
    if asked:
        typer.echo(f"privsgp {__version__}")
        raise typer.Exit


@app.callback()
def privsgp(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=lambda asked: _version(asked=asked), is_eager=True
        ),
    ] = False,
) -> None:
    """Private learning without a server."""


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="run.toml")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, VALUE in TOML; KEY= takes it out.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/<name>.")] = None,
    data_dir: DataDir = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
    moved: Annotated[
        bool, typer.Option("--moved", help="With --resume: the run folder is from another disk or machine, no copy.")
    ] = False,
    ledger: Annotated[
        Path | None, typer.Option(help="An earlier run on this data, or its ledger folder: to go on with its budget.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option("--from", help="An earlier run whose model to start from; on its data: with --ledger."),
    ] = None,
    records: Annotated[
        str, typer.Option("--from-records", help="What that model was made of: these, others or public records.")
    ] = "these",
    drop: Annotated[float, typer.Option(help="Simulated network: the chance that a message is lost.")] = 0.0,
    delay: Annotated[int, typer.Option(help="Simulated network: messages are late by 0 to so many steps.")] = 0,
    crash: Annotated[
        list[str] | None, typer.Option(help="NODE@STEP or NODE@STEP+STEPS: down for so long; default 20 steps.")
    ] = None,
    leave: Annotated[list[str] | None, typer.Option(help="NODE@STEP: leaves for good before that step.")] = None,
    staleness: Annotated[int, typer.Option(help="Steps after which a silent link's message is waited for.")] = 64,
    as_json: Json = False,
) -> None:
    """Train a model over a network of nodes, each with its own privacy budget."""
    settings = cli_data.configured(config, changes)
    with later.package("torch"):
        from privsgp.engine.folder import refuse_used

    place = folder or Path("runs") / settings.name
    if "WORLD_SIZE" not in os.environ:  # processes of torchrun refuse together, once they have met
        refuse_used(place, resume=resume, secret=settings.secret)
    cli_data.there(ledger)
    cli_data.there(start)
    from privsgp.planner import settle as planning
    from privsgp.report import page
    from privsgp.runs import build
    from privsgp.runs import problem as problems
    from privsgp.runs import train as training
    from privsgp.runs.starting import Start
    from privsgp.transport import rendezvous

    world = rendezvous.join()
    if not world.rank:  # of several processes the first speaks
        note(*([training.standing(place)] if resume else []), *problems.unsaid(settings))
    begun = None if start is None else Start.of(start, records)
    with doing("reading the data", quiet=world.rank > 0) as say:
        problem = problems.load_problem(settings, data_dir, world)
        settings, plan = planning.settle(
            settings, problem, place, resume=resume, world=world, data_dir=data_dir, say=say
        )
    problem = problems.at_start(settings, problem) if begun is None else begun.put_into(problem)
    if plan is not None:
        err.print(f"planned: {planning.described(plan)}", soft_wrap=True)
    note(*problems.notes(settings, problem, world))
    show_log()
    faults = build.simulated_faults(
        settings, drop=drop, delay=delay, crash=crash or [], leave=leave or [], staleness=staleness
    )
    with bar(settings.algorithm.steps) as watch:
        result = training.run(
            settings, problem, place, resume=resume, moved=moved, ledgers=ledger, watch=watch, plan=plan, faults=faults,
            start=begun, world=world,
        )  # fmt: skip
    if not world.rank:
        page.leave(result.folder, result.summary)
        tell(result.summary, show_run, result.view, as_json=as_json)


@app.command()
def plan(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(help="run.toml; without it, the paper's bound from the options.")
    ] = None,
    changes: Changes = None,
    data_dir: DataDir = None,
    nodes: Annotated[int, typer.Option(help="n, the number of nodes.")] = 16,
    samples: Annotated[int | None, typer.Option(help="J, the samples of one node.")] = None,
    dim: Annotated[int | None, typer.Option(help="d, the parameters of the model.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of every node.")] = None,
    delta: Annotated[float, typer.Option(help="δ of every node.")] = 1e-5,
    smoothness: Annotated[float | None, typer.Option(help="L, the smoothness of the loss.")] = None,
    clip: Clip = 1.0,
    gap: Annotated[float, typer.Option(help="F⁰ = f(x⁰) − f*")] = 0.0,
    heterogeneity: Annotated[float, typer.Option(help="b², squared as in the paper.")] = 0.0,
    norm: Annotated[float, typer.Option(help="‖x⁰‖², squared as in the paper.")] = 0.0,
    batch: Annotated[float, typer.Option(help="b; the paper draws one sample a step.")] = 1.0,
    network: Annotated[str, typer.Option("--graph", help="Its C and q make K̂.")] = "exponential",
    accountant: AccountantOption = "certified",
    c2: C2 = 0.3724,
    as_json: Json = False,
) -> None:
    """Choose steps, noise and step size for a budget, and show what to expect, before anything is trained."""
    if config is not None:
        _refuse_given(context, beside={"config", "changes", "data_dir", "as_json"})
        settings = cli_data.configured(config, changes or [])
        from privsgp.planner import settle as planning

        with doing("reading the data", quiet=as_json) as say:
            made = planning.plan(settings, data_dir, say=say)
            found = made.as_json() | {"rehearsal_metrics": made.metrics}
        tell(found, show_plan, made, as_json=as_json)
    elif samples is None or dim is None or epsilon is None or smoothness is None:
        raise Refused("no run.toml, and not all of --samples, --dim, --epsilon, --smoothness", "give one or the other")
    else:
        from privsgp import graph as graphs
        from privsgp.accounting.mechanisms import nominal
        from privsgp.planner import settle as planning
        from privsgp.planner.theorems import Constants

        constants = Constants(smoothness, gap, heterogeneity, norm)
        formula = planning.from_constants(
            constants, graphs.make(network, nodes), dim, clip, samples=samples, batch=batch, budget=(epsilon, delta),
            published_c2=c2 if nominal(_accountant(accountant)) else None,
        )  # fmt: skip
        tell(formula.as_json(), show_formula, formula, as_json=as_json)


@app.command()
def graph(
    name: Annotated[
        str, typer.Argument(help="exponential, exponential-static, ring-directed, ring, complete, torus, random")
    ],
    nodes: Annotated[int, typer.Option(help="The paper's n.")] = 16,
    dim: Annotated[int, typer.Option(help="The paper's d, for the bound on C.")] = 1,
    degree: Annotated[int, typer.Option(help="Out-degree of `random`.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of `random`.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Draw it to an .svg file.")] = None,
    as_json: Json = False,
) -> None:
    """Show a network: who talks to whom, and the paper's constants for it."""
    from privsgp import graph as graphs

    network = graphs.make(name, nodes, seed=seed, degree=degree)
    graphs.check(network)
    rows = graphs.table(network, dim)
    if save is not None:
        graphs.draw(network, save)
        err.print(f"drawn to {save}")
    tell(dict(rows), show, f"{name}, {nodes} nodes", rows, as_json=as_json)


@app.command()
def account(
    samples: Samples,
    batch: Batch,
    steps: Steps,
    sigma: Annotated[
        float | None, typer.Option(help="Noise per coordinate of the averaged gradient; of pairwise noise its worth.")
    ] = None,
    algorithm: Algorithm = "privsgp-vr",
    clip: Clip = 1.0,
    delta: Delta = 1e-5,
    difference_clip: DifferenceClip = None,
    difference_scale: DifferenceScale = None,
    period: Period = None,
    alpha: Alpha = None,
    aggregated: Aggregated = None,
    sampling: SamplingOption = "poisson",
    relation: RelationOption = "zero-out",
    accountant: AccountantOption = "certified",
    c2: C2 = 0.3724,
    kappa: Kappa = 0.0,
    coordinates: Coordinates = 0,
    noise: NoiseOption = "independent",
    nodes: Nodes = None,
    honest: Honest = None,
    own_sigma: Annotated[float | None, typer.Option(help="Pairwise noise: a node's own, in place of --sigma.")] = None,
    pair_sigma: Annotated[float | None, typer.Option(help="Pairwise noise: that of each pair.")] = None,
    as_json: Json = False,
) -> None:
    """Tell the ε that so much noise gives. No data needed."""
    from privsgp.accounting import accountant as accountants
    from privsgp.accounting import calibration
    from privsgp.accounting.mechanisms import nominal

    own = {"difference_clip": difference_clip, "period": period, "alpha": alpha, "aggregated": aggregated}
    kind, related = _accountant(accountant), _relation(relation)
    shared = _sharing(noise, algorithm, accountant, nodes, honest)
    covariance = None if shared is None else shared.given(own_sigma, pair_sigma)
    if sigma is not None and covariance is not None:
        raise Refused(f"--sigma {sigma:g} with --noise pairwise", "give --own-sigma and --pair-sigma instead")
    if sigma is None and covariance is None:
        raise Refused("no --sigma", "give the noise; of noise that nodes share, --noise pairwise and both its σ")
    counted = sigma if covariance is None or shared is None else covariance.effective(shared.honest)[0]
    bare = _mechanism(algorithm, counted or 0.0, clip, batch, samples, sampling, kappa, **own)

    def auto(saga: Saga) -> float:
        left = 1.0 if covariance is None else covariance.left([saga.sigma] * covariance.graph.nodes)
        return 1.0 if nominal(kind) else calibration.largest_at(saga, steps, delta, related, left)

    mechanism = _scaled(bare, algorithm, difference_scale, auto).changed(coordinates=coordinates)
    if shared is not None and covariance is not None:
        mechanism = shared.counted(mechanism, covariance)
    spent = accountants.epsilon(mechanism, steps, delta, related)
    claimed = plugins.formula(kind).epsilon(mechanism, steps, delta, c2, algorithm) if nominal(kind) else None
    answer = _counted(spent, kind, claimed, c2, mechanism if difference_scale else None)
    if shared is not None and covariance is not None and mechanism.shared is not None:
        answer |= shared.told(covariance, mechanism.shared, steps, delta, related)
    _answer(answer | _trust(algorithm, aggregated), spent.assumptions, as_json=as_json)


@app.command()
def calibrate(
    samples: Samples,
    batch: Batch,
    steps: Steps,
    epsilon: Annotated[float, typer.Option(help="ε, the budget.")],
    algorithm: Algorithm = "privsgp-vr",
    clip: Clip = 1.0,
    delta: Delta = 1e-5,
    difference_clip: DifferenceClip = None,
    difference_scale: DifferenceScale = None,
    period: Period = None,
    alpha: Alpha = None,
    aggregated: Aggregated = None,
    sampling: SamplingOption = "poisson",
    relation: RelationOption = "zero-out",
    accountant: AccountantOption = "certified",
    c2: C2 = 0.3724,
    kappa: Kappa = 0.0,
    coordinates: Coordinates = 0,
    noise: NoiseOption = "independent",
    nodes: Nodes = None,
    honest: Honest = None,
    pair_ratio: Annotated[float, typer.Option(help="ρ of pairwise noise.")] = 2.0,
    as_json: Json = False,
) -> None:
    """Tell the noise that a budget needs. No data needed."""
    from privsgp.accounting import accountant as accountants
    from privsgp.accounting import calibration
    from privsgp.accounting.counting import count
    from privsgp.accounting.mechanisms import Shared, nominal

    own = {"difference_clip": difference_clip, "period": period, "alpha": alpha, "aggregated": aggregated}
    bare = _mechanism(algorithm, 0.0, clip, batch, samples, sampling, kappa, **own)
    kind, related = _accountant(accountant), _relation(relation)

    def auto(saga: Saga) -> float:
        left = 1.0 if shared is None else shared.solved(1.0, pair_ratio).left([1.0] * shared.graph.nodes)
        return 1.0 if nominal(kind) else calibration.largest(saga, steps, epsilon, delta, related, left)

    shared, covariance = _sharing(noise, algorithm, accountant, nodes, honest), None
    base = mechanism = _scaled(bare, algorithm, difference_scale, auto).changed(coordinates=coordinates)
    if shared is not None:
        mechanism = Shared(base, shared.honest, shared.graph.partners)
    sigma = count(kind, related, algorithm, steps, c2).sigma(mechanism, steps, epsilon, delta)
    if shared is not None:
        covariance = shared.solved(sigma, pair_ratio)
        mechanism = shared.counted(base, covariance)
    spent = accountants.epsilon(mechanism.with_sigma(sigma), steps, delta, related)
    told = _counted(spent, kind, epsilon if nominal(kind) else None, c2, mechanism if difference_scale else None)
    answer = {"sigma": sigma, "epsilon": told["epsilon"], "target_epsilon": epsilon} | told
    if shared is not None and covariance is not None and mechanism.shared is not None:
        answer |= shared.told(covariance, mechanism.shared, steps, delta, related)
    _answer(answer | _trust(algorithm, aggregated), spent.assumptions, as_json=as_json)


@app.command()
def audit(
    config: Annotated[Path, typer.Argument(help="run.toml")],
    changes: Changes = None,
    data_dir: DataDir = None,
    canaries: Annotated[int | None, typer.Option(help="Canaries on each node; default: as many as fit.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the canaries' coins.")] = 0,
    confidence: Annotated[float, typer.Option(help="Of everything said about all nodes together.")] = 0.9999,
    observations: Annotated[int, typer.Option(help="(canary, step) pairs to see of each node.")] = 50_000,
    as_json: Json = False,
) -> None:
    """Attack runs of this configuration on made-up data: a lower bound on every node's ε, or an alarm (status 3)."""
    settings = cli_data.configured(config, changes)
    from privsgp.audit.audit import audit as attack

    try:
        report = attack(settings, data_dir, canaries, seed, confidence, observations, stage)
    except KeyboardInterrupt:
        err.print("audit stopped: the same command starts it again", soft_wrap=True)
        raise typer.Exit(130) from None
    tell(report.to_json(), show_audit, report, as_json=as_json)
    if report.alarm:
        raise typer.Exit(3)


def _refuse_given(context: typer.Context, beside: set[str]) -> None:
    """Refuse options that a run.toml has a key for: two answers to one question."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in beside and source is not None and source.name == "COMMANDLINE":
            raise Refused(
                f"--{name.replace('_', '-')} beside a run.toml", "change the key with --set, or leave one out"
            )


@app.command()
def ledger(
    place: Annotated[
        Path, typer.Argument(help="A run folder, a ledger folder, or one ledger file.", callback=cli_data.there)
    ],
    as_json: Json = False,
) -> None:
    """Check the ledgers of a run and recompute from them what each node has spent; status 1 above a budget."""
    from privsgp.accounting.statements import statements

    found = statements(place)
    if as_json:
        typer.echo(json.dumps([statement.to_json() for statement in found]))
    else:
        from privsgp.sites import signed

        show_statements(found)
        if (agreed := signed.read(place)) is not None:
            err.print(agreed.text, soft_wrap=True)
    if above := [s.name for s in found if s.above]:
        err.print(f"privsgp: ε spent is above its budget: {', '.join(above)}", style="bold red", soft_wrap=True)
        raise typer.Exit(1)


@app.command()
def budget(as_json: Json = False) -> None:
    """Show what each private data set has spent in all, over `train` and `join`, and what the policy leaves."""
    import dataclasses

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
        show_budget(found, None if policy is None else policy.epsilon_total)


@app.command()
def report(
    place: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", callback=cli_data.there)],
    file: Annotated[Path | None, typer.Option("--out", help="Default: report.html in the run's folder.")] = None,
) -> None:
    """Write one page about a finished run: metrics, privacy spent, the network, how to repeat it."""
    from privsgp.report import page

    out = file or place / page.NAME
    page.write(place, out)
    err.print(f"written to {out}", soft_wrap=True)


@app.command()
def options(
    section: Annotated[str | None, typer.Argument(help="A section of run.toml; default: all of them.")] = None,
) -> None:
    """Show every key that a run.toml may have: its values, its default, what it means."""
    with later.package("torch"):
        from privsgp.runs.reference import reference

    known = {name: groups for name, _, groups in reference()}
    if section is not None:
        one_of("section", section, [name for name in known if name])
    for name, groups in known.items():
        if section in (None, name):
            for whose, found in groups:
                show_keys(f"[{name}]" if name else "at the top", whose, found)


def declared() -> dict[str, Callable[..., Mechanism]]:
    """Name what each private algorithm declares, without importing torch, which takes longer than the accounting."""
    from privsgp.accounting.mechanisms import Anchored, Sag, Saga, SampledMean

    kinds: dict[type[Mechanism], tuple[str, ...]] = {
        SampledMean: ("privsgp", "dp2-sgd", "adp2-sgd", "dp-sgd", "local", "soteriafl-sgd"),
        Saga: ("privsgp-vr", "soteriafl-svrg", "soteriafl-saga"),
        Sag: ("privsgp-sag",),
        Anchored: ("dp-srm", "ldp-svrg", "ldp-spider"),
    }
    return {name: kind for kind, names in kinds.items() for name in names}


def _mechanism(
    name: str, sigma: float, clip: float, batch: float, samples: int, sampling: str, kappa: float, **own: float | None
) -> Mechanism:
    """Build what an algorithm declares, with those values of its own that were given."""
    from privsgp.accounting.mechanisms import Summed

    kinds = declared()
    one_of("sampling", sampling, ("poisson", "fixed"))
    values = _own(name)
    if name not in kinds:
        kinds[name], options = _registered(name)
        values = {key: options[key].default for key in own if key in options}
    for key, value in own.items():
        if value is not None and key not in values:
            raise Refused(f"--{key.replace('_', '-')} {value:g} with --algorithm {name}", "leave it out")
        if value is not None:
            values[key] = value
    values["sampling"] = sampling
    nodes = values.pop("aggregated", 1)
    made = kinds[name](sigma=sigma, clip=clip, batch=batch, samples=samples, kappa=kappa, **values)
    return made if nodes == 1 else Summed(made, nodes)


def _registered(name: str) -> tuple[Callable[..., Mechanism], dict[str, Any]]:
    """Return what makes the mechanism of a method that an installed package registers, and the method's options."""
    from privsgp.algorithms import ALGORITHMS, Settings

    one_of("algorithm", name, [name for name, algorithm in ALGORITHMS.items() if algorithm.private])

    options = ALGORITHMS[name].Options

    def mechanism(
        *, clip: float, sampling: Sampling, batch: float, sigma: float, samples: int, kappa: float, **own: float | None
    ) -> Mechanism:
        settings = Settings(clip=clip, sampling=sampling, batch=batch, options=options(**own))
        return ALGORITHMS[name].mechanism(settings, batch=batch, sigma=sigma, samples=samples, kappa=kappa)

    return mechanism, dict(options.model_fields)


def _scaled(mechanism: Mechanism, algorithm: str, given: str | None, auto: Callable[[Saga], float]) -> Mechanism:
    """Return the mechanism with the θ that was given; `auto` tells what training would take."""
    if given is None:
        return mechanism
    if (saga := mechanism.weighted) is None:
        raise Refused(f"--difference-scale {given} with --algorithm {algorithm}", "leave it out")
    return replace(saga, difference_scale=auto(saga) if given == "auto" else _weight(given))


def _weight(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        raise Refused(f"--difference-scale {given}", "take a weight in (0, 1], or auto") from None


def _own(name: str) -> dict[str, Any]:
    """Return the values that only this algorithm's mechanism has, as its settings have them unless they are given."""
    if name == "dp-srm":
        return {"difference_clip": None, "alpha": 0.1, "aggregated": 1}
    if name in ("ldp-svrg", "ldp-spider"):
        return {"difference_clip": None, "period": 10}
    return {"difference_clip": None} if name in ("privsgp-vr", "soteriafl-svrg", "soteriafl-saga") else {}


def _trust(algorithm: str, aggregated: int | None) -> dict[str, str]:
    """Tell whom the ε of dp-srm holds against, and how to get what `train` counts, which knows the number of nodes."""
    if algorithm != "dp-srm":
        return {}
    if (aggregated or 1) > 1:
        return {"trust": "secure aggregation"}
    words = "every message of the node is seen here; train takes secure aggregation unless algorithm.trust = 'per-node'"
    note(f"{words}: --aggregated NODES counts that")
    return {"trust": "per-node"}


def _sharing(noise: str, algorithm: str, accountant: str, nodes: int | None, honest: int | None) -> Sharing | None:
    """Return who shares noise; None where it is independent."""
    from privsgp.accounting.pairwise import Sharing

    one_of("noise", noise, ("independent", "pairwise"))
    given = {"--nodes": nodes, "--honest": honest}
    if noise == "independent":
        if unused := [f"{key} {value}" for key, value in given.items() if value is not None]:
            raise Refused(f"{unused[0]} with independent noise", "leave it out, or take --noise pairwise")
        return None
    if nodes is None:
        raise Refused("--noise pairwise without --nodes", "say how many nodes share noise")
    if algorithm not in SHARING or accountant != "certified":
        raise Refused(
            f"--noise pairwise with --algorithm {algorithm} and --accountant {accountant}",
            f"take one of {', '.join(SHARING)}, and certified",
        )
    return Sharing.among(nodes, honest)


def _relation(name: str) -> Literal["zero-out", "replace-one"]:
    one_of("relation", name, ("zero-out", "replace-one"))
    return "zero-out" if name == "zero-out" else "replace-one"


def _accountant(name: str) -> Accountant:
    from privsgp.accounting.mechanisms import ACCOUNTANTS

    one_of("accountant", name, ACCOUNTANTS)
    return cast("Accountant", name)


def _counted(
    spent: Spent, accountant: Accountant, claimed: float | None, c2: float, scaled: Mechanism | None
) -> dict[str, Any]:
    """Return what was counted: beside the ε that a paper's formula has `claimed`, and the θ of a `scaled` mechanism."""
    told: dict[str, Any] = {
        "epsilon": finite(spent.epsilon), "delta": spent.delta, "relation": spent.relation, "accountant": accountant,
        "rdp_epsilon": finite(spent.rdp_epsilon),
    }  # fmt: skip
    if claimed is not None:
        told |= {"epsilon": finite(claimed), "certified_epsilon": told["epsilon"], "c2": c2}
    saga = None if scaled is None else scaled.weighted
    return told if saga is None else told | {"difference_scale": saga.difference_scale}


def _digits(key: str, value: object) -> str:
    """Write an answer's value, numbers with six digits; ε, δ and σ are rounded up, so that none promises more."""
    if key == "curve" and isinstance(value, list):  # ε by how many nodes are honest
        return ", ".join(f"{honest}: {_digits('epsilon', epsilon)}" for honest, epsilon in value)
    if not isinstance(value, float):
        return "no finite bound" if value is None else str(value)
    return up(value, 6) if any(word in key for word in ("epsilon", "delta", "sigma")) else f"{value:.6g}"


def _answer(answer: dict[str, Any], assumptions: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(answer))
        return
    words = {"curve": "epsilon by honest nodes"}
    show("privacy", [(words.get(key, key), _digits(key, value)) for key, value in answer.items()])
    show_lines(assumptions)
