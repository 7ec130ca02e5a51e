"""Noise and coins: where they come from, and which kinds of noise a run may add."""

from privsgp.options import Options
from privsgp.randomness.pairwise import PairwiseOptions

# What `privacy.noise` may be, and the keys that come with it. "auto": pairwise wherever it can be.
NOISES: dict[str, type[Options]] = {"independent": Options, "pairwise": PairwiseOptions, "auto": PairwiseOptions}
