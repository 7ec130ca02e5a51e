"""Taking a step: the algorithm computes and yields events, a driver does what they ask for.

`drive` is the whole protocol between the two. `RunDriver` is the driver of a run in one process, and of each process
under torchrun: it records a message in the ledgers, and mixes or sends it after that. A site has its own,
`privsgp.sites.trainer.SiteDriver`: it commits, records, posts and waits. `rehearsed` records nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from privsgp.algorithms.events import Event, Exchange, Meet, Pushed, Release, Step, ToServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from privsgp.algorithms import State
    from privsgp.engine.budget_guard import BudgetGuard
    from privsgp.transport.protocol import Transport

    Driver = Callable[[int, Event], Any]  # does what an event of step k asks for, and returns the answer


def drive(step: Step, k: int, driver: Driver) -> State:
    """Take step k: hand each event to the driver and its answer to the step; return the new state."""
    answer: Any = None
    while True:
        try:
            event = step.send(answer)
        except StopIteration as end:
            state: State = end.value
            return state
        answer = driver(k, event)


class RunDriver:
    """All nodes in this process, or its share of them under torchrun; `sent` bytes were sent before.

    Guarantee: messages are in the ledgers when a `Release` is answered. They are mixed or sent after that.
    """

    def __init__(self, transport: Transport, guard: BudgetGuard, sent: int = 0) -> None:
        self.transport, self.guard, self._sent = transport, guard, sent

    @property
    def bytes_sent(self) -> int:
        """The bytes that were sent so far."""
        return self._sent

    def __call__(self, k: int, event: Event) -> Any:  # noqa: ANN401
        """Answer an event of step k."""
        match event:
            case Release(message, None):
                self.guard.record(k, message)
            case Release(message, int(node), number):
                self.guard.record(number, message[None], node)
            case Exchange() | Pushed():
                self._sent += self.transport.messages(k) * self.transport.message_bytes
                return self.transport.mix(k, *event) if isinstance(event, Exchange) else None
            case ToServer(messages, size):
                mean = messages.mean(0, dtype=torch.float64).to(messages.dtype)
                self._sent += len(messages) * (size + mean.nbytes)
                return mean
            case Meet(i, j, x):
                x[i].add_(x[j]).div_(2)
                x[j] = x[i]
                self._sent += 2 * x[i].nbytes if i != j else 0
            case _:
                raise TypeError(f"a step yielded {event!r}, which is no event of privsgp.algorithms.events")
        return None


def rehearsed(k: int, event: Event) -> Any:  # noqa: ANN401
    """Answer for one node that represents the whole network, with public data: nothing leaves."""
    del k
    match event:
        case Exchange():
            return event
        case ToServer(messages):
            return messages.mean(0)
    return None
