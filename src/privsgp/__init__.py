"""Private learning without a server.

`privsgp.train(model, data, …)` trains a model, and `privsgp.load(folder)` reads a finished run. The command `privsgp`
does the same from a run.toml. Every public name has an example in its help, for instance `help(privsgp.train)`.
"""

# Names are imported when they are first used: a training step needs only torch and NumPy.

from __future__ import annotations

from typing import TYPE_CHECKING

from privsgp import later

if TYPE_CHECKING:
    from privsgp.algorithms import register
    from privsgp.api import train
    from privsgp.data import Dataset
    from privsgp.data.schema import Schema
    from privsgp.errors import Refused
    from privsgp.randomness import register_noise
    from privsgp.runs.result import Result, load
    from privsgp.runs.sections import Algorithm, Clock, Engine, Features, Graph, Images, Plan, Privacy, Text, Transport

__version__ = "1.0.0rc1"
_SECTIONS = ("Algorithm", "Clock", "Engine", "Features", "Graph", "Images", "Plan", "Privacy", "Text", "Transport")
__all__ = [
    "Algorithm", "Clock", "Dataset", "Engine", "Features", "Graph", "Images", "Plan", "Privacy", "Refused", "Result",
    "Schema", "Text", "Transport", "__version__", "load", "register", "register_noise", "train",
]  # fmt: skip

__getattr__ = later.names(__name__, {
    "train": "api",
    "load": "runs.result",
    "Result": "runs.result",
    "register": "algorithms",
    "register_noise": "randomness",
    "Dataset": "data",
    "Refused": "errors",
    "Schema": "data.schema",
} | dict.fromkeys(_SECTIONS, "runs.sections"))  # fmt: skip


def __dir__() -> list[str]:
    """Show the public names only, also to completion."""
    return __all__
