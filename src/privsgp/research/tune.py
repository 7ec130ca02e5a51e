"""A search for the free parameters of a run, on data that are nobody's secret.

Every trial rehearses the average model under the noise it would have (plan/rehearsal.py), with momentum and averages as
the engine takes them, and scores it on samples it has not seen. One parameter after the other is moved up and down
for as long as that helps. What is tried on the nodes' own data would spend privacy: it is refused.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from privsgp.audit.audit import silent
from privsgp.engine.averaging import Averaging, FinalModel
from privsgp.errors import Refused, refuse_below_one
from privsgp.planner import settle as planning
from privsgp.planner.noise import Method, Network, NoiseNeeded
from privsgp.planner.rehearsal import Rehearsal, RehearsalSpec
from privsgp.runs import budgets as protection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from privsgp.audit.audit import Stage
    from privsgp.runs.config import Config

LONGEST = 128  # steps of a rehearsal; a longer run takes as many coarser ones
BETTER = 0.002  # of the score: less is chance


@dataclass(frozen=True)
class Trial:
    """The free parameters; `share` is that of the tail which is averaged, 0 for none."""

    step_size: float
    clip: float
    batch: float
    steps: int
    momentum: float
    share: float


def tune(
    config: Config, public: str, data_dir: Path | None = None, *, most: int = 60, stage: Stage = silent
) -> tuple[dict[str, Any], Config]:
    """Search on `public` data: "synthetic", the name of a data set, or an .npz file; at most `most` trials.

    Return all trials with their scores and the best one, as plain values, and the configuration with it.

    Guarantee: nothing here depends on the nodes' samples.
    Assumes: the sizes J_i and the model at x⁰ are public, and so is what is called so.
    """
    refuse_below_one(trials=most)
    source = planning.source_of(config, public, data_dir)
    if config.auto or config.privacy.epsilon is None:
        what = f"{config.auto[0]} = 'auto'" if config.auto else "no privacy.epsilon"
        raise Refused(f"tune with {what}", "give a budget, and numbers to start the search from")
    problem = planning.problem_of(config, data_dir)
    rehearsal = Rehearsal(problem.model, problem.loss, planning.runs_of(config, source, problem, data_dir))
    rehearse = Rehearse(config, planning.network_of(config, problem), rehearsal)
    with stage("trials", most) as done:
        best = search(rehearse, start(config), most, done)
    trials = [asdict(trial) | {"score": score} for trial, score in rehearse.scores.items()]
    return {"looked_at": source.text, "best": asdict(best), "trials": trials}, applied(config, best)


def start(config: Config) -> Trial:
    """Return the configuration's own values."""
    a = config.algorithm
    share = (a.average_share or FinalModel.share) if a.average == "tail" else 0.0
    return Trial(config.step_size, protection.settings(config).clip, float(a.batch), a.steps, a.momentum, share)


def applied(config: Config, trial: Trial) -> Config:
    """Return the configuration with a trial's values."""
    t = trial
    tail = {"average": "tail", "average_share": t.share} if t.share else {"average": "none", "average_share": None}
    a = {"step_size": t.step_size, "batch": t.batch, "steps": t.steps, "momentum": t.momentum}
    if (c := protection.settings(config).difference_clip) is not None:
        a["difference_clip"] = c * t.clip / protection.settings(config).clip
    values = config.model_dump()
    return config.with_values(
        {"algorithm": values["algorithm"] | a | tail, "privacy": values["privacy"] | {"clip": t.clip}}
    )


class Rehearse:
    """Scores of trials, each rehearsed once."""

    def __init__(self, config: Config, network: Network, rehearsal: Rehearsal) -> None:
        self.config, self.network, self.rehearsal = config, network, rehearsal
        self.scores: dict[Trial, float] = {}
        # the samples of a node, as a whole number: where J_i differ by one, no node has their mean
        self.largest_batch = float(math.floor(network.mean_samples))

    def __call__(self, trial: Trial) -> float:
        """Return the mean score of a few rehearsals."""
        if trial not in self.scores:
            self.scores[trial] = self._score(trial)
        return self.scores[trial]

    def _score(self, t: Trial) -> float:
        coarse = min(t.steps, LONGEST)
        final_model = FinalModel("tail", share=t.share) if t.share else FinalModel()
        momentum = t.momentum ** (t.steps / coarse)  # as many steps of the run are remembered
        runs = range(len(self.rehearsal.runs))
        states = self.rehearsal.states(self._spec(t), t.step_size * t.steps, coarse, runs, momentum=momentum)
        for k, state in enumerate(states):
            if k == 0:
                averaging = Averaging(final_model, coarse, state)
            averaging.add(k, state)
        ends = averaging.released(state).z
        return -math.fsum(self.rehearsal.test_loss(x, run) for run, x in enumerate(ends)) / len(runs)

    def _spec(self, t: Trial) -> RehearsalSpec:
        """Return what is rehearsed, with the clip of differences that training takes beside "auto"."""
        own, config = Method(self.config.algorithm.name, protection.settings(self.config)), self.config
        times = t.clip / own.settings.clip
        difference = own.settings.difference_clip
        if own.scaled and not config.privacy.nominal:
            difference = protection.difference_clip(config)
        own = own.changed(difference_clip=None if difference is None else difference * times)
        noise = NoiseNeeded(self.network, replace(own, settings=replace(own.settings, clip=t.clip)), t.batch)
        kappa = noise.common(t.steps) / math.sqrt(self.network.nodes * t.steps)
        return RehearsalSpec(
            own.algorithm, noise.settled(t.steps).settings, kappa, t.steps * t.batch / self.network.mean_samples
        )


def search(rehearse: Rehearse, best: Trial, most: int, done: Callable[[int], None]) -> Trial:
    """Move one parameter after the other for as long as that helps, up to `most` trials."""
    moved = True
    while moved:
        moved = False
        for better in _neighbours(best, rehearse.largest_batch):
            done(len(rehearse.scores))
            if len(rehearse.scores) >= most:
                return best
            if rehearse(better) > rehearse(best) + BETTER * abs(rehearse(best)):
                best, moved = better, True
                break
    return best


def _neighbours(t: Trial, largest: float) -> Iterator[Trial]:
    """Yield what lies around a trial; what is only a change of scale keeps the distance a model travels."""
    yield from (replace(t, step_size=t.step_size * f) for f in (2, 0.5))
    yield from (replace(t, clip=t.clip * f, step_size=t.step_size / f) for f in (0.5, 2))
    yield from (replace(t, share=share) for share in (0.0, 0.25, 0.5) if share != t.share)
    yield from (replace(t, momentum=m) for m in (0.0, 0.5, 0.9) if m != t.momentum)
    yield from (replace(t, steps=t.steps * 2, step_size=t.step_size / 2), replace(t, batch=min(t.batch * 2, largest)))
