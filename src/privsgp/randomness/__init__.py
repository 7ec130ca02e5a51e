"""Noise and coins: where they come from, and which kinds of noise a run may add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from privsgp.options import Count, Options, option

if TYPE_CHECKING:
    from privsgp.randomness.noise import Noise


class PairwiseOptions(Options):
    """The options of pairwise noise."""

    honest: Count | None = option(
        None, "h: of all nodes so many are honest, oneself included; left out: three quarters of them, rounded up"
    )
    pair_ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)] = option(
        2.0, "ρ: more noise in each message for less in the average; D + h s² = ρσ²"
    )


# The values of `privacy.noise` with their keys. "auto": pairwise if possible.
NOISES: dict[str, type[Options]] = {"independent": Options, "pairwise": PairwiseOptions, "auto": PairwiseOptions}
REGISTERED: dict[str, type[Noise]] = {}  # the noises of users, by name, for simulations
