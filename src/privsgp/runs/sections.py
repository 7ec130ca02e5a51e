"""The sections of run.toml as objects for Python, each with the keys of all its components.

`privsgp.train(…, privacy=Privacy(epsilon=1.0))` is the same as `privacy={"epsilon": 1.0}`. `runs.config.parse` checks
which keys go together. A key that may be left to the planner takes "auto" here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from privsgp.algorithms.saga import SagaOptions
from privsgp.data.images import ImageOptions as Images
from privsgp.data.text import TextOptions as Text
from privsgp.features.options import ScatteringOptions
from privsgp.graph.sequences import RandomOptions
from privsgp.options import Options
from privsgp.randomness import PairwiseOptions
from privsgp.runs import config as configs
from privsgp.runs.config import Clock, Engine
from privsgp.runs.config import PlanSection as Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Algorithm", "Clock", "Engine", "Features", "Graph", "Images", "Plan", "Privacy", "Text"]


class Privacy(configs.Privacy, PairwiseOptions):
    """Budgets, or fixed noise; one value, or a list with one per node."""


class Graph(configs.GraphSection, RandomOptions):
    """Who talks to whom."""


class Features(configs.Features, ScatteringOptions):
    """What the model sees of a sample: the sample, or a fixed map of it."""


class Algorithm(configs.AlgorithmSection, SagaOptions):
    """How it is learnt; other people's methods have keys of their own, which `train` checks."""

    model_config = ConfigDict(extra="allow")


def plain(section: Options | Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that were given, as run.toml has them."""
    if not isinstance(section, Options):
        return dict(section)
    return section.model_dump(exclude_unset=True) | dict.fromkeys(getattr(section, "auto", ()), "auto")
