"""Messages that no honest node sends: one table for the border of sites, their server, their relay, and torchrun."""

from __future__ import annotations

import math

NUMBERS = {"NaN": math.nan, "infinite": math.inf, "minus infinite": -math.inf, "its square overflows": 1e38}  # in x
WEIGHTS = {"NaN": math.nan, "infinite": math.inf, "negative": -1.0, "more than all nodes hold": 4.1}

# Between sites: what is changed in a message that is otherwise right, and the kind of the refusal.
HEADERS = {
    "another run": ({"run": "0" * 64}, "run"),
    "in another's name": ({"source": 2}, "source"),
    "to another": ({"target": 2}, "target"),
    "of another length": ({"length": 8}, "length"),
    "after the last step": ({"step": 22}, "step"),
    "of another body": ({"sha256": "0" * 64}, "hash"),
}
SUMS = {f"x {name}": ({"x": value}, "not finite") for name, value in NUMBERS.items()} | {
    f"w {name}": ({"w": value}, "weight" if math.isfinite(value) else "not finite") for name, value in WEIGHTS.items()
}
MESSAGES = HEADERS | SUMS
