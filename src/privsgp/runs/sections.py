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
from privsgp.runs.config import TransportSection as Transport

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Algorithm", "Clock", "Engine", "Features", "Graph", "Images", "Plan", "Privacy", "Text", "Transport"]


class Privacy(configs.Privacy, PairwiseOptions):
    """Budgets, or fixed noise; one value, or a list with one per node.

    Example:
        >>> import privsgp
        >>> privsgp.Privacy(epsilon=[0.5, 1.0], delta=1e-5).epsilon
        [0.5, 1.0]

    """


class Graph(configs.GraphSection, RandomOptions):
    """The network of nodes.

    Example:
        >>> import privsgp
        >>> privsgp.Graph(name="ring").name
        'ring'

    """


class Features(configs.Features, ScatteringOptions):
    """A fixed map of each sample before the model.

    Example:
        >>> import privsgp
        >>> privsgp.Features(name="scattering", like="strokes", components=512).components
        512

    """


class Algorithm(configs.AlgorithmSection, SagaOptions):
    """The method and its settings. `privsgp.train` checks the keys of other methods.

    Example:
        >>> import privsgp
        >>> privsgp.Algorithm(name="privsgp-vr", batch=64, steps=300, step_size=0.5).steps
        300

    """

    model_config = ConfigDict(extra="allow")


def plain(section: Options | Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that were given, as run.toml has them."""
    if not isinstance(section, Options):
        return dict(section)
    return section.model_dump(exclude_unset=True) | dict.fromkeys(getattr(section, "auto", ()), "auto")
