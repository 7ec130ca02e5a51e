"""Per-sample clipped gradients of m models at once, and the tables that remember them.

`stack(model, loss, …)` picks the way gradients are taken; what comes back is a `PerSample` value that can be clipped
and summed without ever making a batch × d array where a layer has a rule.
"""

from privsgp.gradient.parameters import Layout
from privsgp.gradient.per_sample import PerSample
from privsgp.gradient.stacked import Stacked, stack
from privsgp.gradient.table import Table, make_table

__all__ = ["Layout", "PerSample", "Stacked", "Table", "make_table", "stack"]
