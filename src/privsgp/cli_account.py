"""`account` and `calibrate`: the ε of a noise, and the noise of an ε. One implementation; no data are needed."""

from __future__ import annotations

import functools
import inspect
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from privsgp import later, plugins
from privsgp.accounting.shown import up
from privsgp.cli_data import Json, about, note, one_of
from privsgp.errors import Refused
from privsgp.files import finite
from privsgp.report.terminal import show, show_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from privsgp.accounting.mechanisms import Mechanism, Relation, Saga, Sampling
    from privsgp.accounting.sharing import Sharing

SHARING = ("privsgp", "privsgp-vr", "privsgp-sag", "dp2-sgd")  # methods in whose steps shared noise cancels

Clip = Annotated[float, typer.Option(help="G, the norm of one sample's clipped gradient.")]
C2 = Annotated[float, typer.Option(help="c₂ of the published formula.")]
AccountantOption = Annotated[
    Literal["certified", "published"], typer.Option(help="published: the formula of the algorithm's paper")
]


def add_to(app: typer.Typer) -> None:
    """Add the commands: each is `_count` without the options of the other."""
    account, calibrate = {"sigma", "own_sigma", "pair_sigma"}, {"epsilon", "pair_ratio"}
    app.command("account", **about("account"), help="Compute ε for a given noise level.")(_without(calibrate))
    app.command("calibrate", **about("calibrate"), help="Compute the noise that a budget needs.")(_without(account))


def _without(others: set[str]) -> Callable[..., None]:
    signature = inspect.signature(_count, eval_str=True)

    @functools.wraps(_count)
    def command(**given: Any) -> None:  # noqa: ANN401 - typer's own
        _count(**given)

    kept = [parameter for name, parameter in signature.parameters.items() if name not in others]
    kept = [one.replace(default=one.empty) if one.name == "epsilon" else one for one in kept]  # a budget is needed
    vars(command)["__signature__"] = signature.replace(parameters=kept)
    return command


def _count(
    *,
    samples: Annotated[int, typer.Option(help="J, the node's number of samples.")],
    batch: Annotated[float, typer.Option(help="b, the expected batch.")],
    steps: Annotated[int, typer.Option(help="K, the number of releases.")],
    sigma: Annotated[
        float | None,
        typer.Option(help="Noise per coordinate of the averaged gradient; effective, if pairwise."),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε, the budget.")] = None,
    algorithm: Annotated[
        str, typer.Option(help="privsgp-vr, privsgp, dp2-sgd, …: any that adds noise.")
    ] = "privsgp-vr",
    clip: Clip = 1.0,
    delta: Annotated[float, typer.Option(help="δ")] = 1e-5,
    difference_clip: Annotated[float | None, typer.Option(help="C of clipped differences; default: no clip.")] = None,
    difference_scale: Annotated[
        str | None, typer.Option(help="θ, or auto as in training; default: the paper's, 1.")
    ] = None,
    period: Annotated[
        int | None, typer.Option(help="Releases from one anchor to the next (ldp-svrg, ldp-spider); default 10.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="α of dp-srm; default 0.1.")] = None,
    aggregated: Annotated[
        int, typer.Option(help="Nodes whose messages are visible only as a sum (dp-srm). 1: every message is visible.")
    ] = 1,
    sampling: Annotated[Literal["poisson", "fixed"], typer.Option(help="How a batch is drawn.")] = "poisson",
    relation: Annotated[
        Literal["zero-out", "replace-one"], typer.Option(help="Which data sets are neighbours.")
    ] = "zero-out",
    accountant: AccountantOption = "certified",
    c2: C2 = 0.3724,
    kappa: Annotated[
        float, typer.Option(help="κ, the slack of the arithmetic; runs count with 2⁻¹² or more in float32.")
    ] = 0.0,
    coordinates: Annotated[
        int, typer.Option(help="d, the length of a message: counts the rounding of noise. 0 assumes ideal noise.")
    ] = 0,
    rows_per_person: Annotated[
        int | None, typer.Option(help="A sample is a person with up to so many rows; --samples counts persons.")
    ] = None,
    sites_per_person: Annotated[
        int, typer.Option(min=1, help="Sites like this one that hold rows of a person; the curve is for one.")
    ] = 1,
    noise: Annotated[
        Literal["independent", "pairwise"], typer.Option(help="pairwise: shared by pairs of nodes")
    ] = "independent",
    nodes: Annotated[int | None, typer.Option(help="n, of pairwise noise.")] = None,
    honest: Annotated[int | None, typer.Option(help="h: honest nodes, your own included; default: 3n/4.")] = None,
    own_sigma: Annotated[float | None, typer.Option(help="Pairwise noise: own part, instead of --sigma.")] = None,
    pair_sigma: Annotated[float | None, typer.Option(help="Pairwise noise: the part of each pair.")] = None,
    pair_ratio: Annotated[float | None, typer.Option(help="ρ of pairwise noise; default 2.")] = None,
    as_json: Json = False,
) -> None:
    from privsgp.accounting import accountant as accountants
    from privsgp.accounting import calibration
    from privsgp.accounting.counting import count
    from privsgp.accounting.mechanisms import Shared, nominal

    ratio = pair_ratio or 2.0
    sharing = _sharing(noise, algorithm, accountant, nodes, honest)
    covariance = None if epsilon is not None or sharing is None else sharing.given(own_sigma, pair_sigma)
    if epsilon is None and (sigma is None) == (covariance is None):
        what = "no --sigma" if sigma is None else f"--sigma {sigma:g} with --noise pairwise"
        raise Refused(what, "give --sigma, or for --noise pairwise --own-sigma and --pair-sigma")
    at = sigma if sharing is None or covariance is None else covariance.effective(sharing.honest)[0]

    def auto(saga: Saga) -> float:
        shared = None if sharing is None else covariance or sharing.solved(1.0, ratio)
        left = 1.0 if shared is None else shared.left([at or 1.0] * shared.graph.nodes)
        if nominal(accountant):
            return 1.0
        if epsilon is None:
            return calibration.largest_at(saga, steps, delta, relation, left)
        return calibration.largest(saga, steps, epsilon, delta, relation, left)

    own = {"difference_clip": difference_clip, "difference_scale": _weight(difference_scale)}
    own |= {"period": period, "alpha": alpha}
    bare = _mechanism(algorithm, at or 0.0, clip, batch, samples, sampling, kappa, aggregated, **own)
    saga = bare.weighted if difference_scale == "auto" else None
    scaled = bare if saga is None else replace(saga, difference_scale=auto(saga))
    mechanism = scaled.changed(coordinates=coordinates)
    of_person = _for_persons(rows_per_person, sites_per_person)
    if epsilon is not None:
        counting = count(accountant, relation, algorithm, steps, c2)
        whole = mechanism if sharing is None else Shared(mechanism, sharing.honest, sharing.graph.partners)
        sigma = calibration.needed(counting, of_person(whole, 1 - 1 / ratio), steps, epsilon, delta)
        mechanism = mechanism.with_sigma(sigma)
        covariance = None if sharing is None else sharing.solved(sigma, ratio)
    if sharing is not None and covariance is not None:
        mechanism = sharing.counted(mechanism, covariance)
    shown = None if covariance is None else covariance.pair / (covariance.pair + min(covariance.own))
    mechanism = of_person(mechanism, shown)
    spent = accountants.epsilon(mechanism, steps, delta, relation)

    answer: dict[str, Any] = {} if epsilon is None else {"sigma": sigma, "epsilon": None, "target_epsilon": epsilon}
    answer |= {"epsilon": finite(spent.epsilon), "delta": spent.delta, "relation": relation, "accountant": accountant}
    answer["rdp_epsilon"] = finite(spent.rdp_epsilon)
    if nominal(accountant):
        claimed = epsilon or plugins.formula(accountant).epsilon(mechanism, steps, delta, c2, algorithm)
        answer |= {"epsilon": finite(claimed), "certified_epsilon": answer["epsilon"], "c2": c2}
    if difference_scale is not None and mechanism.weighted is not None:
        answer["difference_scale"] = mechanism.weighted.difference_scale
    answer |= _by_sites(mechanism, steps, delta, relation)
    if sharing is not None and covariance is not None and mechanism.shared is not None:
        answer |= sharing.told(covariance, mechanism.shared, steps, delta, relation)
    _show(answer | _trust(algorithm, aggregated), spent.assumptions, as_json=as_json)


def _for_persons(rows: int | None, sites: int) -> Callable[[Mechanism, float | None], Mechanism]:
    """Return what makes the mechanism of persons, by what one site's message shows of another's; of records nothing."""
    from privsgp.accounting.mechanisms import PersonLevel

    if rows is None and sites > 1:
        raise Refused(f"--sites-per-person {sites}", "give --rows-per-person too: it is for persons")
    return lambda one, shown: one if rows is None else PersonLevel(one, rows, sites, 1.0 if shown is None else shown)


def _by_sites(mechanism: Mechanism, steps: int, delta: float, relation: Relation) -> dict[str, Any]:
    """Return the unit, and ε of a person by the number of sites; of records nothing."""
    from privsgp.accounting.statements import by_sites

    if mechanism.person is None:
        return {}
    curve = [[sites, finite(epsilon)] for sites, epsilon in by_sites(mechanism, steps, delta, relation)]
    return {"unit": mechanism.person.unit, "by_sites": curve}


def _trust(algorithm: str, aggregated: int) -> dict[str, str]:
    """Explain the trust of dp-srm's ε, and how to get the value of `train`, which knows the number of nodes."""
    if algorithm != "dp-srm":
        return {}
    if aggregated == 1:
        note("every message is seen here; train takes secure aggregation, which --aggregated NODES counts")
    return {"trust": "secure aggregation" if aggregated > 1 else "per-node"}


def _show(answer: dict[str, Any], assumptions: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(answer))
        return
    words = {"curve": "epsilon by honest nodes", "by_sites": "epsilon by sites of a person"}
    show("privacy", [(words.get(key, key), _digits(key, value)) for key, value in answer.items()])
    show_lines(assumptions)


def _weight(given: str | None) -> float | str | None:
    """Return the number that a text is, else the text."""
    try:
        return given if given is None else float(given)
    except ValueError:
        return given


def _mechanism(
    name: str,
    sigma: float,
    clip: float,
    batch: float,
    samples: int,
    sampling: Sampling,
    kappa: float,
    aggregated: int = 1,
    **own: float | str | None,
) -> Mechanism:
    """Build what a method declares, with those values of its own that were given."""
    from pydantic import ValidationError

    with later.package("torch"):  # which takes longer than the accounting
        from privsgp.algorithms import ALGORITHMS, Settings
        from privsgp.outside import fault

    if name not in ALGORITHMS or not ALGORITHMS[name].private:
        one_of("algorithm", name, [name for name, algorithm in ALGORITHMS.items() if algorithm.private])
    algorithm, trust = ALGORITHMS[name], "secure aggregation" if aggregated > 1 else "per-node"
    if trust not in (*algorithm.trusts, "per-node"):
        raise Refused(f"--aggregated {aggregated} with --algorithm {name}", "leave it out")
    given = {key: value for key, value in own.items() if value is not None}
    for key in given.keys() - algorithm.Options.model_fields.keys():
        raise Refused(f"--{key.replace('_', '-')} {given[key]} with --algorithm {name}", "leave it out")
    try:
        options = algorithm.Options(**given)
    except ValidationError as error:
        remedy = f"take values that [algorithm] of run.toml takes with name = {name!r}"
        raise Refused(f"--algorithm {name}: {fault(error)}", remedy) from error
    settings = Settings(clip=clip, sampling=sampling, batch=batch, nodes=aggregated, trust=trust, options=options)
    return algorithm.mechanism(settings, sigma=sigma, batch=batch, samples=samples, kappa=kappa)


def _sharing(noise: str, algorithm: str, accountant: str, nodes: int | None, honest: int | None) -> Sharing | None:
    """Return who shares noise; None where it is independent."""
    from privsgp.accounting.sharing import Sharing

    if noise == "independent":
        if nodes is not None or honest is not None:
            raise Refused("--nodes or --honest with independent noise", "leave it out, or take --noise pairwise")
        return None
    if nodes is None:
        raise Refused("--noise pairwise without --nodes", "say how many nodes share noise")
    if algorithm not in SHARING or accountant != "certified":
        raise Refused(
            f"--noise pairwise with --algorithm {algorithm} and --accountant {accountant}",
            f"take one of {', '.join(SHARING)}, and certified",
        )
    return Sharing.among(nodes, honest)


def _digits(key: str, value: object) -> str:
    """Write an answer's value, numbers with six digits; ε, δ and σ are rounded up, so that none promises more."""
    if key in ("curve", "by_sites") and isinstance(value, list):  # ε by a number of nodes
        return ", ".join(f"{honest}: {_digits('epsilon', epsilon)}" for honest, epsilon in value)
    if not isinstance(value, float):
        return "no finite bound" if value is None else str(value)
    return up(value, 6) if any(word in key for word in ("epsilon", "delta", "sigma")) else f"{value:.6g}"
