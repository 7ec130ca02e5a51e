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
    logs = [c.steps(i) for i in range(n)]
    last = dict(sorted((j, step) for log in logs for line in log.values() for j, step in sorted(line["taken"])))
    halves = {i: _halves(log, last[i], {*range(n)} - {i}) for i, log in enumerate(logs)}
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
                for target, step in halves[i].pop(0):  # who left: what it had not taken comes back
                    held[i] = held[i] + carried[i, target][k] - carried[i, target][step]
    assert not any(halves.values()), "messages were taken that nobody sent"
    return held


def _halves(log, last, others):
    """Return what a site did, in order: at each step it gives, takes, and takes back.

    Who stopped in the middle of a step has sent it and noted nothing: others took it.
    """
    halves = []
    for k in sorted(log.keys() | {last}):
        line = log.get(k, {"sent": others, "taken": []})
        halves += [("give", k, line["sent"]), ("take", k, line["taken"]), line.get("returned", ())]
    return halves
