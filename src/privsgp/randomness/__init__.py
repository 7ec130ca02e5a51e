"""Noise and coins: where they come from, and which kinds of noise a run may add."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from privsgp.errors import Refused
from privsgp.options import Count, Options, option

if TYPE_CHECKING:
    from privsgp.randomness.noise import Noise


class PairwiseOptions(Options):
    """The options of pairwise noise."""

    honest: Count | None = option(
        None, "h: the number of honest nodes, this one included; default: three quarters of all, rounded up"
    )
    pair_ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)] = option(
        2.0, "ρ: more noise in each message for less in the average; D + h s² = ρσ²"
    )


# The values of `privacy.noise` with their keys. "auto": pairwise if possible.
NOISES: dict[str, type[Options]] = {"independent": Options, "pairwise": PairwiseOptions, "auto": PairwiseOptions}
REGISTERED: dict[str, type[Noise]] = {}  # the noises of users, by name


def register_noise(noise: type[Noise]) -> type[Noise]:
    """Register a noise of your own for simulations, so that `privacy.noise = "…"` can choose it. Also a decorator.

    Args:
        noise: A subclass of `privsgp.randomness.noise.Noise` with a `name` in small letters.

    Returns:
        The class itself.

    Raises:
        Refused: If it is no such class, or privsgp's own noise has the name.

    Guarantee: none. privsgp has no proof of its law, so it refuses a run without a seed.

    Example:
        >>> import privsgp
        >>> from privsgp.randomness.noise import IndependentNoise
        >>> @privsgp.register_noise
        ... class Mine(IndependentNoise):
        ...     name = "mine"
        >>> privsgp.Privacy(epsilon=1.0, noise="mine").noise
        'mine'

    """
    name = getattr(noise, "name", "")
    if not (isinstance(noise, type) and hasattr(noise, "of_nodes") and re.fullmatch(r"[a-z][\w-]*", name)):
        raise Refused(f"register_noise({noise!r}): no subclass of Noise", "pass one whose `name` is in small letters")
    if name in NOISES.keys() - REGISTERED.keys():
        raise Refused(f"the name {name!r} belongs to one of privsgp's own noises", "give your class another `name`")
    NOISES[name], REGISTERED[name] = Options, noise
    return noise
