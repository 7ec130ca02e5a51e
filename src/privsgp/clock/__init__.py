"""A virtual clock: how long gradients and messages take, who waits for whom, and who acts when nobody waits."""

from privsgp.clock.events import Event, Events, schedule
from privsgp.clock.times import Times
from privsgp.clock.waiting import Waiting

__all__ = ["Event", "Events", "Times", "Waiting", "schedule"]
