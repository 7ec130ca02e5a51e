"""policy.toml: the most that a site allows any run to spend on its records, whoever asks for it.

It is in the site's home folder ($PRIVSGP_SITE, else ~/.config/privsgp/site). `train` and `join` check it before they
spend anything, with the sums of the budget book.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from privsgp.accounting.shown import up
from privsgp.errors import Refused
from privsgp.files import read_toml, shaped, user_folder
from privsgp.options import Count, Options, Positive, Probability, option

if TYPE_CHECKING:
    from pathlib import Path

    from privsgp.accounting.book import Total

_LONGEST = 2**16
_ROUNDING = 1e-9


def default_home() -> Path:
    """Return the home folder of this user's site: $PRIVSGP_SITE, else ~/.config/privsgp/site."""
    return user_folder("PRIVSGP_SITE", "XDG_CONFIG_HOME", ".config", "privsgp/site")


class Policy(Options):
    """The limits of a site for a run; a missing key sets no limit."""

    epsilon_run: Positive | None = option(None, "largest ε of one run")
    epsilon_total: Positive | None = option(None, "largest sum of ε over all runs on the same record")
    delta_run: Probability | None = option(None, "largest δ of one run; default: below 1/J if ε is limited")
    delta_total: Probability | None = option(None, "largest sum of δ over all runs on the same record")
    relation: Literal["zero-out", "replace-one"] | None = option(None, "the neighbour relation that ε must be about")
    algorithms: list[str] | None = option(None, "algorithms that may be run")
    weights: Count | None = option(None, "largest number of weights of a model")
    peers: list[str] | None = option(None, "fingerprints of the sites that may take part")
    fewest: Count | None = option(None, "least number of sites that must be there while steps are taken")
    honest: Count | None = option(None, "most sites that must be honest, this one included; default: 1 under limits")
    simulation: bool | None = option(None, "whether the site signs runs with a seed; default: not under limits")

    @property
    def limited(self) -> bool:
        """Whether ε or δ is limited: then what weakens them has to be allowed by name."""
        return any((self.epsilon_run, self.epsilon_total, self.delta_run, self.delta_total))

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
    found = read_toml(path, "policy", "mend it: without it this site signs nothing", _LONGEST)
    return shaped(found, Policy, str(path), f"known keys: {', '.join(Policy.model_fields)}")


def refuse_spending(
    policy: Policy, *, epsilon: float | None, delta: float, relation: str, samples: int, before: Total
) -> None:
    """Refuse a run that may spend more than the policy allows; `before` is what its records have spent elsewhere.

    Guarantee: after this, the run's ε and δ, and their sums over all runs in the budget book, are within the policy for
    every record of the run.
    """
    if policy.relation not in (None, relation):
        raise refused(f"relation = {policy.relation!r}, and the run's ε is about {relation!r}")
    asked = {
        "epsilon_run": (epsilon, policy.epsilon_run, 0.0), "delta_run": (delta, policy.delta_run, 0.0),
        "epsilon_total": (epsilon, policy.epsilon_total, before.epsilon),
        "delta_total": (delta, policy.delta_total, before.delta),
    }  # fmt: skip
    for key, (value, most, spent) in asked.items():
        if most is not None and (value is None or value + spent > most * (1 + _ROUNDING)):
            added = f"; other runs on the same records may have spent {up(spent)}" if spent else ""
            raise refused(
                f"{key} = {most:g}, and the run asks for {'no finite ε' if value is None else up(value)}{added}"
            )
    if policy.limited and policy.delta_run is None and delta * samples >= 1:
        raise refused(
            f"no delta_run, and δ = {up(delta)} is not below 1/J for J = {samples} records: the run might "
            "publish a whole record with that probability"
        )


def refused(what: str) -> Refused:
    """Return the refusal of something that the policy does not allow."""
    return Refused(f"policy.toml: {what}", "nothing was sent: ask for another agreement, or for another policy")
