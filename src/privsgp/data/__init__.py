"""Data: loaders for the standard files, partitions over nodes, and the stacked arrays the engine works on."""

from __future__ import annotations

from privsgp.data.dataset import Dataset, StackedData, Task, from_arrays, stack
from privsgp.data.loading import load, load_sites
from privsgp.data.partitions import partition

__all__ = ["Dataset", "StackedData", "Task", "from_arrays", "load", "load_sites", "partition", "stack"]
