"""The right average, by a computation of its own: what mixing alone must lead to, from what each site held at first.

Nothing of privsgp takes part but the logs: which messages a site sent and took at each step. A step gives each target
1/n of what a site holds; a message carries all that was ever sent over its link.
"""

from __future__ import annotations

import numpy as np


def firsts(c):
    """Return what each site held before any mixing, x and w."""
    return [np.load(f"{c.out(i)}.first.npy") for i in range(len(c.sites))]


def held_at_the_end(c):
    """Play the logs again; return what each site then holds, x and w."""
    n, held = len(c.sites), firsts(c)
    halves = {i: _halves(c.steps(i)) for i in range(n)}
    carried = {(j, i): {-1: np.zeros_like(held[0])} for j in range(n) for i in range(n)}  # over a link, up to a step
    had = dict.fromkeys(carried, 0.0)  # what its target has taken of it

    def can(i):
        kind, _, messages = halves[i][0]
        return kind == "give" or all(step in carried[j, i] for j, step in messages)

    while ready := [i for i in halves if halves[i] and can(i)]:
        for i in ready:
            kind, k, messages = halves[i].pop(0)
            if kind == "give":
                for target in range(n):
                    carried[i, target][k] = carried[i, target][k - 1] + (target in messages) * held[i] / n
                held[i] = held[i] * (1 - len(messages) / n)
            else:
                for j, step in messages:
                    held[i] = held[i] + carried[j, i][step] - had[j, i]
                    had[j, i] = carried[j, i][step]
    assert not any(halves.values()), "messages were taken that nobody sent"
    return held


def _halves(log):
    """Return what a site did, in order: at each step it gives, then takes."""
    return [half for k in sorted(log) for half in (("give", k, log[k]["sent"]), ("take", k, log[k]["taken"]))]
