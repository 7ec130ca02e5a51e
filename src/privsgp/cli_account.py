"""`account` and `calibrate`: the ε of a noise, and the noise of an ε, as a run counts them. No data are needed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from privsgp import later
from privsgp.accounting.shown import up
from privsgp.cli_data import Changes, Json, about
from privsgp.errors import Refused
from privsgp.files import finite
from privsgp.report.terminal import show, show_lines

if TYPE_CHECKING:
    from privsgp.runs.config import Config


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    ways = {
        "account": "Compute the ε that a run with this noise spends (--sigma).",
        "calibrate": "Compute the noise that a budget needs (--epsilon).",
    }
    for name, words in ways.items():
        app.command(name, help=words, **about(name))(account)


def account(
    samples: Annotated[int, typer.Option(help="J, the node's number of samples.")],
    batch: Annotated[float, typer.Option(help="b, the expected batch.")],
    steps: Annotated[int, typer.Option(help="K, the number of releases.")],
    sigma: Annotated[float | None, typer.Option(help="Noise per coordinate of the averaged gradient.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε, the budget: instead of --sigma.")] = None,
    nodes: Annotated[int, typer.Option(help="n: nodes that share noise, or whose messages are seen as a sum.")] = 1,
    algorithm: Annotated[str, typer.Option(help="privsgp-vr, privsgp, dp2-sgd, …: any with noise.")] = "privsgp-vr",
    clip: Annotated[float, typer.Option(help="G, the norm of one sample's clipped gradient.")] = 1.0,
    delta: Annotated[float, typer.Option(help="δ")] = 1e-5,
    accountant: Annotated[
        Literal["certified", "published"], typer.Option(help="published: the formula of the algorithm's paper")
    ] = "certified",
    kappa: Annotated[
        float, typer.Option(help="κ, the slack of the arithmetic; runs in float32 count 2⁻¹² or more.")
    ] = 0.0,
    coordinates: Annotated[int, typer.Option(help="d, the length of a message: counts what computed noise costs.")] = 0,
    changes: Changes = None,
    as_json: Json = False,
) -> None:
    """Compute ε from `sigma`, or the noise from `epsilon`: one of them is given."""
    privacy = {"sigma": sigma, "epsilon": epsilon, "clip": clip, "delta": delta, "accountant": accountant}
    config = _config(samples, batch, steps, nodes, algorithm, privacy, changes)
    answer, rests_on = _counted(config, kappa, coordinates)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    words = {"curve": "epsilon by honest nodes", "by_sites": "epsilon by sites of a person"}
    show("privacy", [(words.get(key, key), _digits(key, value)) for key, value in answer.items()])
    show_lines(rests_on)


def _config(
    samples: int, batch: float, steps: int, nodes: int, algorithm: str, privacy: dict[str, Any],
    changes: list[str] | None,
) -> Config:  # fmt: skip
    """Return the configuration of a run with these numbers, whose messages all arrive: no step is made again."""
    with later.package("torch"):
        from privsgp.algorithms import ALGORITHMS
        from privsgp.runs import config as configs

    section = {"name": algorithm, "batch": batch, "steps": steps}
    if algorithm in ALGORITHMS and "difference_scale" in ALGORITHMS[algorithm].Options.model_fields:
        section["difference_scale"] = 1.0  # the paper's
    values = {"data": {"nodes": nodes, "sizes": [samples] * nodes}, "algorithm": section}
    config = configs.parse(values | {"privacy": privacy | {"spare": 0.0}}, changes or [])
    if not config.private:
        raise Refused(f"--algorithm {algorithm} adds no noise and has no ε", "take one that adds noise")
    return config


def _counted(config: Config, kappa: float, coordinates: int) -> tuple[dict[str, Any], list[str]]:
    """Return what a run of this configuration would count, of one of its nodes, and what that assumes."""
    from privsgp.accounting import accountant as accountants
    from privsgp.accounting.assumptions import assumptions
    from privsgp.accounting.calibration import C2
    from privsgp.accounting.statements import by_sites
    from privsgp.runs.budgets import calibrate_nodes, with_scale

    sizes, p, steps = config.data.sizes or [], config.privacy, config.algorithm.steps
    config = with_scale(config, sizes)
    made = calibrate_nodes(config, sizes, kappa, coordinates=coordinates)
    mechanism, delta = made.mechanisms[0], made.deltas[0]
    spent = accountants.epsilon(mechanism, steps, delta, p.relation)

    answer: dict[str, Any] = {} if p.epsilon is None else {"sigma": mechanism.sigma, "epsilon": None}
    answer |= {} if p.epsilon is None else {"target_epsilon": p.epsilon}
    answer |= {"epsilon": finite(spent.epsilon), "delta": delta, "relation": p.relation, "accountant": p.accountant}
    answer["rdp_epsilon"] = finite(spent.rdp_epsilon)
    if p.nominal:
        answer |= {"epsilon": p.epsilon, "certified_epsilon": answer["epsilon"], "c2": C2}
    if mechanism.weighted is not None and mechanism.weighted.difference_scale != 1:
        answer["difference_scale"] = mechanism.weighted.difference_scale
    if mechanism.person is not None:
        curve = by_sites(mechanism, steps, delta, p.relation)
        answer |= {"unit": mechanism.person.unit, "by_sites": [[sites, finite(epsilon)] for sites, epsilon in curve]}
    if config.trust != "per-node":
        answer["trust"] = config.trust
    if made.covariance is not None and made.trust_curve is not None:
        if coordinates:
            made.covariance.refuse_large_pairs()
        by_honest = [[honest, finite(epsilon)] for honest, epsilon in made.trust_curve(0, steps)]
        answer |= {"honest": config.honest} | made.covariance.to_json(config.honest) | {"curve": by_honest}
    return answer, assumptions(mechanism, steps, p.relation)


def _digits(key: str, value: object) -> str:
    """Write an answer's value, numbers with six digits; ε, δ and σ are rounded up, so that none promises more."""
    if key in ("curve", "by_sites") and isinstance(value, list):  # ε by a number of nodes
        return ", ".join(f"{honest}: {_digits('epsilon', epsilon)}" for honest, epsilon in value)
    if not isinstance(value, float):
        return "no finite bound" if value is None else str(value)
    return up(value, 6) if any(word in key for word in ("epsilon", "delta", "sigma")) else f"{value:.6g}"
