"""The command line. Results go to stdout, all else to stderr; bad input ends with status 2 and nothing written."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from privsgp.errors import Refused
from privsgp.report.terminal import (
    bar,
    err,
    out,
    show,
    show_audit,
    show_log,
    show_plan,
    show_statements,
    show_summary,
    show_tuned,
)

if TYPE_CHECKING:
    from privsgp.privacy.mechanism import Mechanism

app = typer.Typer(
    help="Private learning without a server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Algorithm = Annotated[str, typer.Option(help="privsgp, privsgp-vr or privsgp-sag.")]
Samples = Annotated[int, typer.Option(help="J, the node's number of samples.")]
Batch = Annotated[float, typer.Option(help="b, the expected batch.")]
Steps = Annotated[int, typer.Option(help="K, the number of releases.")]
Clip = Annotated[float, typer.Option(help="G, the norm of one sample's clipped gradient.")]
Delta = Annotated[float, typer.Option(help="δ")]
DifferenceClip = Annotated[float | None, typer.Option(help="C of clipped differences (privsgp-vr).")]
SamplingOption = Annotated[str, typer.Option(help="poisson or fixed")]
RelationOption = Annotated[str, typer.Option(help="zero-out or replace-one")]
AccountantOption = Annotated[str, typer.Option(help="certified, or published (the paper's formula)")]
C2 = Annotated[float, typer.Option(help="c₂ of the published formula.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]


def main() -> None:
    """Run the command line; turn refusals into status 2."""
    from privsgp.engine.stops import Diverged, Interrupted

    try:
        app()
    except Refused as refused:
        err.print(f"privsgp: {refused.what}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        err.print(f"  → {refused.remedy}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except Interrupted as stopped:
        err.print(f"{stopped}; a checkpoint is kept: continue with the same command and --resume", soft_wrap=True)
        sys.exit(130)
    except Diverged as diverged:
        err.print(f"privsgp: {diverged}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except OSError as error:
        err.print(f"privsgp: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        err.print("  → nothing was half-written; mend it (a full disk?) and run again with --resume", soft_wrap=True)
        sys.exit(1)


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="run.toml")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, VALUE in TOML; KEY= takes it out.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/<name>.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where MNIST, CIFAR-10, a9a lie (or PRIVSGP_DATA).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
    ledger: Annotated[
        Path | None, typer.Option(help="Ledger folder of an earlier run on this data, to go on spending its budget.")
    ] = None,
    drop: Annotated[float, typer.Option(help="Simulated network: the chance that a message is lost.")] = 0.0,
    delay: Annotated[int, typer.Option(help="Simulated network: messages are late by 0 to so many steps.")] = 0,
    crash: Annotated[list[str] | None, typer.Option(help="NODE@STEP or NODE@STEP+STEPS: down for so long.")] = None,
    leave: Annotated[list[str] | None, typer.Option(help="NODE@STEP: leaves for good.")] = None,
    staleness: Annotated[int, typer.Option(help="Steps after which a silent link's message is waited for.")] = 64,
    as_json: Json = False,
) -> None:
    """Train a model over a network of nodes, each with its own privacy budget."""
    from privsgp import config as configs
    from privsgp import planning, training
    from privsgp.engine import rendezvous

    settings = configs.read(config, changes or [])
    place = folder or Path("runs") / settings.name
    settings, problem, plan = planning.settle(
        settings, lambda c: training.load_problem(c, data_dir), place, resume=resume, data_dir=data_dir
    )
    if plan is not None:
        err.print(f"planned: {planning.words(plan)}", soft_wrap=True)
    for note in training.notes(settings, problem):
        err.print(f"note: {note}", soft_wrap=True)
    show_log()
    faults = training.simulated_faults(
        settings, drop=drop, delay=delay, crash=crash or [], leave=leave or [], staleness=staleness
    )
    with bar(settings.algorithm.steps) as watch:
        result = training.run(
            settings, problem, place, resume=resume, ledgers=ledger, watch=watch, plan=plan, faults=faults
        )
    if rendezvous.join().rank:
        return  # of several processes the first speaks
    if as_json:
        typer.echo(json.dumps(result.summary))
    else:
        show_summary(result.summary, result.folder)


@app.command()
def plan(
    config: Annotated[
        Path | None, typer.Argument(help="run.toml; without it, the paper's bound from the options.")
    ] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, as for train.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where MNIST, CIFAR-10, a9a lie (or PRIVSGP_DATA).")] = None,
    nodes: Annotated[int, typer.Option(help="n")] = 16,
    samples: Annotated[int | None, typer.Option(help="J, the samples of one node.")] = None,
    dim: Annotated[int | None, typer.Option(help="d, the parameters of the model.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of every node.")] = None,
    delta: Annotated[float, typer.Option(help="δ of every node.")] = 1e-5,
    smoothness: Annotated[float | None, typer.Option(help="L")] = None,
    clip: Annotated[float, typer.Option(help="G")] = 1.0,
    gap: Annotated[float, typer.Option(help="F⁰ = f(x⁰) − f*")] = 0.0,
    heterogeneity: Annotated[float, typer.Option(help="b², squared as in the paper.")] = 0.0,
    norm: Annotated[float, typer.Option(help="‖x⁰‖², squared as in the paper.")] = 0.0,
    batch: Annotated[float, typer.Option(help="b; the paper draws one sample a step.")] = 1.0,
    network: Annotated[str, typer.Option("--graph", help="Its C and q make K̂.")] = "exponential",
    accountant: AccountantOption = "certified",
    c2: C2 = 0.3724,
    save: Annotated[Path | None, typer.Option(help="Draw bound and noise against K to a picture.")] = None,
    as_json: Json = False,
) -> None:
    """Tell before anything is trained: how many steps, how much noise, what to expect."""
    from privsgp import config as configs
    from privsgp import graph as graphs
    from privsgp import planning
    from privsgp.plan import picture
    from privsgp.plan.theorems import Constants

    if config is not None:
        made = planning.plan(configs.read(config, changes or []), data_dir, compare=save is not None)
        formula = made.formula
    elif samples is None or dim is None or epsilon is None or smoothness is None:
        raise Refused("no run.toml, and not all of --samples, --dim, --epsilon, --smoothness", "give one or the other")
    else:
        _one_of("accountant", accountant, ("certified", "published"))
        made, constants = None, Constants(smoothness, gap, heterogeneity, norm)
        formula = planning.from_constants(
            constants, graphs.make(network, nodes), dim, clip, samples=samples, batch=batch, budget=(epsilon, delta),
            published_c2=c2 if accountant == "published" else None,
        )  # fmt: skip
    if save is not None:
        picture.draw(formula, save, made)
        err.print(f"drawn to {save}")
    if as_json:
        typer.echo(json.dumps((made or formula).as_json()))
    else:
        show_plan(formula, made)


@app.command()
def graph(
    name: Annotated[str, typer.Argument(help="exponential, ring, …")],
    nodes: Annotated[int, typer.Option(help="The paper's n.")] = 16,
    dim: Annotated[int, typer.Option(help="The paper's d, for the bound on C.")] = 1,
    degree: Annotated[int, typer.Option(help="Out-degree of `random`.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of `random`.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Draw it to a picture.")] = None,
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
    if as_json:
        typer.echo(json.dumps(dict(rows)))
    else:
        show(f"{name}, {nodes} nodes", rows)


@app.command()
def account(
    samples: Samples,
    batch: Batch,
    steps: Steps,
    sigma: Annotated[float, typer.Option(help="Noise per coordinate of the averaged gradient.")],
    algorithm: Algorithm = "privsgp-vr",
    clip: Clip = 1.0,
    delta: Delta = 1e-5,
    difference_clip: DifferenceClip = None,
    sampling: SamplingOption = "poisson",
    relation: RelationOption = "zero-out",
    accountant: AccountantOption = "certified",
    c2: C2 = 0.3724,
    as_json: Json = False,
) -> None:
    """Tell the ε that so much noise gives. No data needed."""
    from privsgp.privacy import accountant as accountants
    from privsgp.privacy import published

    mechanism = _mechanism(algorithm, sigma, clip, batch, samples, sampling, difference_clip)
    _one_of("accountant", accountant, ("certified", "published"))
    spent = accountants.epsilon(mechanism, steps, delta, _relation(relation))
    answer: dict[str, Any] = {
        "epsilon": _finite(spent.epsilon), "delta": delta, "relation": relation, "accountant": accountant,
        "rdp_epsilon": _finite(spent.rdp_epsilon),
    }  # fmt: skip
    if accountant == "published":
        nominal = published.epsilon(mechanism, steps, delta, c2=c2)
        answer |= {"epsilon": _finite(nominal), "certified_epsilon": _finite(spent.epsilon), "c2": c2}
    _answer(answer, spent.assumptions, as_json=as_json)


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
    sampling: SamplingOption = "poisson",
    relation: RelationOption = "zero-out",
    accountant: AccountantOption = "certified",
    c2: C2 = 0.3724,
    as_json: Json = False,
) -> None:
    """Tell the noise that a budget needs. No data needed."""
    from privsgp.privacy import accountant as accountants
    from privsgp.privacy import calibration, published

    mechanism = _mechanism(algorithm, 0.0, clip, batch, samples, sampling, difference_clip)
    _one_of("accountant", accountant, ("certified", "published"))
    related = _relation(relation)
    if accountant == "published":
        sigma = published.sigma(mechanism, steps, epsilon, delta, c2=c2)
    else:
        sigma = calibration.sigma(mechanism, steps, epsilon, delta, related)
    spent = accountants.epsilon(mechanism.with_sigma(sigma), steps, delta, related)
    answer: dict[str, Any] = {
        "sigma": sigma, "epsilon": _finite(spent.epsilon), "target_epsilon": epsilon, "delta": delta,
        "relation": relation, "accountant": accountant, "rdp_epsilon": _finite(spent.rdp_epsilon),
    }  # fmt: skip
    if accountant == "published":
        answer |= {"epsilon": epsilon, "certified_epsilon": _finite(spent.epsilon), "c2": c2}
    _answer(answer, spent.assumptions, as_json=as_json)


@app.command()
def audit(
    config: Annotated[Path, typer.Argument(help="run.toml")],
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, as for train.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where MNIST, CIFAR-10, a9a lie (or PRIVSGP_DATA).")] = None,
    canaries: Annotated[int | None, typer.Option(help="Canaries on each node; default: as many as fit.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the canaries' coins.")] = 0,
    confidence: Annotated[float, typer.Option(help="Of everything said about all nodes together.")] = 0.95,
    observations: Annotated[int, typer.Option(help="(canary, step) pairs to see of each node.")] = 50_000,
    as_json: Json = False,
) -> None:
    """Attack runs of this configuration on made-up data: a lower bound on every node's ε, or an alarm (status 3)."""
    from privsgp import config as configs
    from privsgp.experiments.audit import audit as attack

    report = attack(configs.read(config, changes or []), data_dir, canaries, seed, confidence, observations)
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        show_audit(report)
    if report.alarm:
        raise typer.Exit(3)


@app.command()
def tune(
    config: Annotated[Path, typer.Argument(help="run.toml: where the search starts.")],
    public: Annotated[str, typer.Option(help="What to search on: synthetic, a data set's name, or an .npz file.")],
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, as for train.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where MNIST, CIFAR-10, a9a lie (or PRIVSGP_DATA).")] = None,
    save: Annotated[Path, typer.Option("--out", help="Where the configuration with what was found goes.")] = Path(
        "tuned.toml"
    ),
    trials: Annotated[int, typer.Option(min=1, help="The most combinations to try.")] = 60,
    as_json: Json = False,
) -> None:
    """Search step size, clip, batch, steps, momentum and averaging on public or synthetic data alone."""
    from privsgp import config as configs
    from privsgp.experiments.tune import tune as search

    found = search(configs.read(config, changes or []), public, data_dir, most=trials)
    save.write_text(found.config.toml())
    err.print(f"written to {save}")
    if as_json:
        typer.echo(json.dumps(found.to_json()))
    else:
        show_tuned(found)


@app.command()
def ledger(
    place: Annotated[Path, typer.Argument(help="A run folder, a ledger folder, or one ledger file.")],
    as_json: Json = False,
) -> None:
    """Check the ledgers of a run and recompute from them what each node has spent."""
    from privsgp.privacy.statement import statements

    found = statements(place)
    if as_json:
        typer.echo(json.dumps([statement.to_json() for statement in found]))
    else:
        show_statements(found)


def declared() -> dict[str, type[Mechanism]]:
    """Name what each private algorithm declares, without importing torch, which takes longer than the accounting."""
    from privsgp.privacy.mechanism import Sag, Saga, SampledMean

    return {"privsgp": SampledMean, "privsgp-vr": Saga, "privsgp-sag": Sag}


def _mechanism(
    name: str, sigma: float, clip: float, batch: float, samples: int, sampling: str, difference_clip: float | None
) -> Mechanism:
    kinds = declared()
    _one_of("algorithm", name, list(kinds))
    if difference_clip is not None and name != "privsgp-vr":
        raise Refused(f"--difference-clip {difference_clip} with --algorithm {name}", "it belongs to privsgp-vr")
    _one_of("sampling", sampling, ("poisson", "fixed"))
    own = {"difference_clip": difference_clip} if name == "privsgp-vr" else {}
    values: dict[str, Any] = {"batch": batch, "samples": samples, "sampling": sampling} | own
    return kinds[name](sigma=sigma, clip=clip, **values)


def _relation(name: str) -> Literal["zero-out", "replace-one"]:
    _one_of("relation", name, ("zero-out", "replace-one"))
    return "zero-out" if name == "zero-out" else "replace-one"


def _one_of(option: str, value: str, known: tuple[str, ...] | list[str]) -> None:
    if value not in known:
        raise Refused(f"--{option} {value}", f"take one of {', '.join(known)}")


def _answer(answer: dict[str, Any], assumptions: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(answer))
        return
    show("privacy", [(key, "no finite bound" if value is None else str(value)) for key, value in answer.items()])
    for line in assumptions:
        out.print(f"  · {line}", soft_wrap=True)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
