"""Private learning without a server.

`privsgp.train(model, data, …)` trains; the command `privsgp` does the same from a run.toml. Everything is imported
when it is first used: a training step needs torch and NumPy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privsgp import later

if TYPE_CHECKING:
    from privsgp.algorithms import register
    from privsgp.api import train
    from privsgp.data import Dataset
    from privsgp.data.schema import Schema
    from privsgp.errors import Refused
    from privsgp.runs.result import Result, load

__version__ = "1.0.0rc1"
__all__ = ["Dataset", "Refused", "Result", "Schema", "__version__", "load", "register", "train"]

__getattr__ = later.names(__name__, {
    "train": "api",
    "load": "runs.result",
    "Result": "runs.result",
    "register": "algorithms",
    "Dataset": "data",
    "Refused": "errors",
    "Schema": "data.schema",
})  # fmt: skip
