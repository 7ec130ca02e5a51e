"""policy.toml: what a site allows, whoever asks. It lies in its home, and is checked before anything is signed."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, ValidationError

from privsgp.accounting.shown import up
from privsgp.errors import Refused
from privsgp.files import read_bytes
from privsgp.options import Count, Options, Positive, option

if TYPE_CHECKING:
    from pathlib import Path

    from privsgp.sites.agreement import Agreement

_LONGEST = 2**16
_ROUNDING = 1e-9


class Policy(Options):
    """What an agreement may ask of a site; a key that is left out allows everything."""

    epsilon_run: Positive | None = option(None, "largest ε of one run")
    epsilon_total: Positive | None = option(None, "largest sum of the ε of all runs that this home has signed")
    delta_run: Annotated[float, Field(gt=0, lt=1)] | None = option(
        None, "largest δ of one run; left out: below 1/J where ε is limited"
    )
    algorithms: list[str] | None = option(None, "algorithms that may be run")
    weights: Count | None = option(None, "largest number of weights of a model")
    peers: list[str] | None = option(None, "fingerprints of the sites with whom to learn")
    fewest: Count | None = option(None, "least number of sites that must be there while steps are taken")
    honest: Count | None = option(
        None,
        "most sites, this one included, that may have to be honest for ε to hold; 1: no pairwise noise; left out: 1 "
        "where ε or δ is limited",
    )
    simulation: bool | None = option(
        None,
        "whether agreements with a seed, which protect nothing, may be signed; left out: not where ε or δ is limited",
    )

    @property
    def limited(self) -> bool:
        """Whether ε or δ is limited: then what weakens them has to be allowed by name."""
        return (self.epsilon_run, self.epsilon_total, self.delta_run) != (None, None, None)

    @property
    def allows_seeds(self) -> bool:
        """Whether what has a seed may be signed: its noise is known, so that no ε holds."""
        return not self.limited if self.simulation is None else self.simulation

    @property
    def most_honest(self) -> int | None:
        """How many sites may have to be honest, this one included; None: all."""
        return 1 if self.honest is None and self.limited else self.honest


def read(path: Path) -> Policy | None:
    """Read a site's policy; None where it has none."""
    if not path.exists():
        return None
    try:
        return Policy.model_validate(tomllib.loads(read_bytes(path, _LONGEST).decode()))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise Refused(
            f"{path}: {key} = {first['input']!r}: {first['msg']}", f"known keys: {', '.join(Policy.model_fields)}"
        ) from error
    except (ValueError, RecursionError, OSError) as error:
        raise Refused(f"{path} is not TOML: {error}", "mend it: without it this site signs nothing") from error


def refuse_against(policy: Policy, agreement: Agreement, node: int, signed: float) -> None:
    """Refuse an agreement that asks for more than the policy allows; `signed`: Σε of all other runs that were signed.

    Guarantee: after this, ε and δ that the site would promise are within its policy, by its own count.
    """
    epsilon, delta = agreement.epsilon[node], agreement.delta[node]
    asked = {
        "epsilon_run": (epsilon, policy.epsilon_run), "delta_run": (delta, policy.delta_run),
        "epsilon_total": (None if epsilon is None else epsilon + signed, policy.epsilon_total),
        "weights": (agreement.weights, policy.weights),
    }  # fmt: skip
    for key, (value, most) in asked.items():
        if most is not None and (value is None or value > most * (1 + _ROUNDING)):
            so_far = f" ({up(signed, 6)} of it in runs signed before)" if key == "epsilon_total" and signed else ""
            said = "no ε at all" if value is None else f"{up(value, 6)}{so_far}"
            raise _refused(f"{key} = {most:g}, and the agreement asks for {said}")
    J = agreement.values["samples"][node]
    if policy.limited and policy.delta_run is None and delta * J >= 1:
        raise _refused(
            f"no delta_run, and the agreement's δ = {delta} is not below 1/J for {J} samples: publishing a whole "
            "record with that probability would be allowed"
        )
    if policy.algorithms is not None and agreement.algorithm not in policy.algorithms:
        raise _refused(f"algorithms = {policy.algorithms}, and the agreement's is {agreement.algorithm!r}")
    if policy.fewest is not None and agreement.limits.fewest < policy.fewest:
        raise _refused(f"fewest = {policy.fewest}, and the agreement goes on with {agreement.limits.fewest} sites")
    if policy.most_honest is not None and (agreement.honest or 1) > policy.most_honest:
        raise _refused(
            f"honest = {policy.most_honest}, and ε of the agreement holds if {agreement.honest} of "
            f"{len(agreement.roster)} sites are honest"
        )
    if agreement.config.seed is not None and not policy.allows_seeds:
        raise _refused(f"simulation is not true, and the agreement has the seed {agreement.config.seed}: no ε holds")
    for card in agreement.roster if policy.peers is not None else ():
        if card is not agreement.roster[node] and card.fingerprint not in (policy.peers or ()):
            raise _refused(f"peers does not name {card.fingerprint} ({card.name})")


def _refused(what: str) -> Refused:
    return Refused(
        f"policy.toml: {what}",
        "nothing was signed: ask for another agreement, or have the policy changed by whom it is",
    )
