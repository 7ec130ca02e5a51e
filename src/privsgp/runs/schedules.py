"""What changes from step to step by a public plan: the step size γ_k, the clip C_k and the noise σ_k.

All three are functions of the configuration and of k, known to everybody before the run. Clip and noise become a stair
of a few stretches (`accounting.schedule`), which is what is applied and what is counted.

`noise_schedule = "optimal"`: let w_k be the weight that the noise of step k has in the released model. Σ w_k² σ_k² is
least for a given Σ (C_k/σ_k)², what Gaussian releases cost, where σ_k² ∝ C_k/w_k (docs/algorithms.md, "Schedules").
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from privsgp.accounting.schedule import Schedule, stair
from privsgp.algorithms import ALGORITHMS
from privsgp.errors import Refused
from privsgp.options import Options, Positive, option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.runs.config import Config

NoiseSchedule = Literal["constant", "proportional", "optimal"]
STRETCHES = 8  # within 1.5 % of the variance that the smooth schedule has, for every shape tried
_LEAST_WEIGHT = 1 / 16  # of the largest: σ is at most four times the least (1 % of the variance)
_NOTHING = 1e-280  # a weight that may be divided by


class Clips(Options):
    """A clip that goes from `start` to `end` over the run; its shape is public."""

    schedule: Literal["cosine", "linear", "steps"] = option(..., "how it goes; steps: by equal factors")
    start: Positive = option(..., "C at the first step")
    end: Positive = option(..., "C at the last step")
    pieces: Annotated[int, Field(ge=2, le=32)] | None = option(None, "of steps: how many; left out: 4")

    def at(self, k: int, steps: int) -> float:
        """Return C_k."""
        if self.schedule != "steps":
            return self.end + (self.start - self.end) * left(self.schedule, k, steps)
        pieces = self.pieces or 4
        done = min(k * pieces // max(1, steps), pieces - 1) / (pieces - 1)
        return math.exp(math.log(self.start) * (1 - done) + math.log(self.end) * done)


def left(shape: str, k: int, steps: int, hold: float = 0.0) -> float:
    """Return what is left of the way from start to end at step k: 1 at the first, 0 at the last."""
    done = max(0.0, (k / max(1, steps - 1) - hold) / (1 - hold))
    return (1 + math.cos(math.pi * done)) / 2 if shape == "cosine" else 1 - done


def step_size(config: Config) -> Callable[[int], float]:
    """Return γ_k: a constant, the paper's √(n/K), or a schedule."""
    given, steps = config.algorithm.step_size, config.algorithm.steps
    if isinstance(given, Options):
        return functools.partial(given.at, steps=steps)
    constant = math.sqrt(config.data.nodes / steps) if given == "theory" else float(given)
    return lambda _k: constant


def scheduled(config: Config) -> bool:
    """Tell whether clip or noise change from step to step."""
    return isinstance(config.privacy.clip, Clips) or config.privacy.noise_schedule != "constant"


def refuse_uncounted(config: Config) -> None:
    """Refuse a schedule where no proof or no program covers it; tables and anchors refuse it themselves."""
    p, a = config.privacy, config.algorithm
    if p.noise_curvature and p.noise_schedule != "optimal":
        raise Refused(
            f"privacy.noise_curvature = {p.noise_curvature:g} with privacy.noise_schedule = {p.noise_schedule!r}",
            "leave it out, or take 'optimal'",
        )
    if not scheduled(config):
        return
    key = "clip" if isinstance(p.clip, Clips) else "noise_schedule"
    given = getattr(p, key)
    what = f"privacy.{key} = {given.model_dump(exclude_none=True) if isinstance(given, Options) else given!r}"
    for wrong, where, remedy in _uncovered(config):
        if wrong:
            raise Refused(f"{what} with {where}", remedy)
    if a.unit_steps and p.noise_schedule == "optimal":
        raise Refused(f"{what} with algorithm.unit_steps = true", "take 'constant': what noise weighs is not known")


def _uncovered(config: Config) -> list[tuple[bool, str, str]]:
    """Return what no schedule goes with: whether it is so, what it is, and what to do."""
    p, a = config.privacy, config.algorithm
    named = f"algorithm.name = {a.name!r}"
    return [
        (not config.private, named, "leave it out: nothing is clipped or noised"),
        (ALGORITHMS[a.name].asynchronous, named, "leave it out: nodes that act one at a time have no common step"),
        (p.nominal, f"privacy.accountant = {p.accountant!r}", "take 'certified': the formula is for equal steps"),
        (p.noise != "independent", f"privacy.noise = {p.noise!r}", "take 'independent': shared noise is of one size"),
        (bool(a.auto), f"algorithm.{next(iter(a.auto), '')} = 'auto'", "write numbers: the planner knows equal steps"),
    ]


def refuse_planning(config: Config, who: str) -> None:
    """Refuse a schedule where steps are taken to be alike."""
    if scheduled(config):
        raise Refused(f"{who} with a schedule of clip or noise", "leave it out: prices are those of equal steps")


def largest_clip(config: Config) -> float:
    """Return the largest clip of any step."""
    given = config.privacy.clip
    return _stair(config)[1] if isinstance(given, Clips) else given


def schedule(config: Config, spare: int) -> Schedule | None:
    """Return the stair of clip and noise; None where all steps are alike. `spare` releases may be repeats."""
    if not scheduled(config):
        return None
    stretches = _stair(config)[0]
    return Schedule(stretches, spare) if len(stretches) > 1 else None


def _stair(config: Config) -> tuple[Any, float, float]:
    clips = clip_values(config)
    # As many stretches as the user's own steps, where the noise follows them.
    return stair(clips, noise_values(config, clips), max(STRETCHES, getattr(config.privacy.clip, "pieces", None) or 0))


def clip_values(config: Config) -> list[float]:
    """Return C_k of every step, before steps are laid together."""
    given, steps = config.privacy.clip, config.algorithm.steps
    return [given.at(k, steps) if isinstance(given, Clips) else given for k in range(steps)]


def noise_values(config: Config, clips: Sequence[float]) -> list[float]:
    """Return σ_k of every step but for a common factor, before steps are laid together."""
    kind = config.privacy.noise_schedule
    if kind == "constant":
        return [1.0] * len(clips)
    if kind == "proportional":
        return list(clips)
    w = weights(config)
    least = max(_LEAST_WEIGHT * max(w), _NOTHING)
    return [math.sqrt(clip / max(one, least)) for clip, one in zip(clips, w, strict=True)]


def weights(config: Config) -> list[float]:
    """Return w_k: what the released model holds of the noise of step k, where curvature λ pulls all noise back.

    Push-sum conserves Σ x_i, so mixing changes nothing. The noise of step k moves x by γ_k, of which the state after
    step j keeps e^{−λ (γ_{k+1} + … + γ_j)}; the model is a mean of states with weights a_j; momentum β spreads it out.
    """
    a, gamma = config.algorithm, step_size(config)
    shares, rate = _shares(config), config.privacy.noise_curvature
    found, kept, later = [0.0] * a.steps, 0.0, 0.0
    for k in reversed(range(a.steps)):
        fades = math.exp(-rate * gamma(k + 1)) if k + 1 < a.steps else 0.0  # a schedule has no step beyond the last
        kept = shares[k] + kept * fades
        later = (1 - a.momentum) * gamma(k) * kept + a.momentum * later
        found[k] = later
    return found


def _shares(config: Config) -> list[float]:
    """Return a_j: the share that the state after step j has in the model that is released."""
    a, steps = config.algorithm, config.algorithm.steps
    if a.average == "exponential":
        d = 0.99 if a.average_decay is None else a.average_decay
        return [(1 - d) * d ** (steps - 1 - j) for j in range(steps)]
    tail = max(1, round((0.5 if a.average_share is None else a.average_share) * steps)) if a.average == "tail" else 1
    return [0.0] * (steps - tail) + [1 / tail] * tail
