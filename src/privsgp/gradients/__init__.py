"""Per-sample clipped gradients of m models at once, and the tables that remember them.

`stack(model, loss, …)` picks the way gradients are taken; what comes back is a `PerSample` value that can be clipped
and summed without ever making a batch × d array where a layer has a rule.
"""

from privsgp.gradients.layout import Layout
from privsgp.gradients.per_sample import PerSample
from privsgp.gradients.stacked import Stacked, stack
from privsgp.gradients.table import Table, make_table

__all__ = ["Layout", "PerSample", "Stacked", "Table", "make_table", "stack"]
