"""Data: loaders for the standard files, partitions over nodes, and the stacked arrays the engine works on."""

from __future__ import annotations

from privsgp.data.dataset import Dataset, Task, from_arrays
from privsgp.data.loading import load, load_sites
from privsgp.data.partitions import partition
from privsgp.data.stacking import Stacked, stack

__all__ = ["Dataset", "Stacked", "Task", "from_arrays", "load", "load_sites", "partition", "stack"]
