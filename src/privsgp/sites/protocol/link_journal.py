"""Both ends of a site's links, in memory and on the disk: running sums of what was sent, and of what has arrived.

They are 8 bytes a weight, a link and a direction: too much to be written at each step. What changes them is half of it
and less, and some of it serves all links: x of the step, and of each message that was taken what was new in it. So a
journal holds these, and sums are made of them when a process takes up its commit.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.sites.journal import GROWTH, Log
from privsgp.sites.protocol.frames import split_step
from privsgp.transport.link import grown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from privsgp.sites.agreement import Agreement
    from privsgp.sites.protocol.frames import Frame
    from privsgp.transport.link import Sums

_HEAD = struct.Struct("<I")
_LEAST = 1 << 22  # bytes up to which a file may grow, however small the model


class LinkJournal(Log):
    """The sums of each link from and to a node, and what has changed them since a file began."""

    def __init__(self, folder: Path, agreement: Agreement, node: int) -> None:
        super().__init__(folder, "links")
        self.agreement, self.node = agreement, node
        self.targets = sorted(i for j, i in agreement.links if j == node)
        self.sources = sorted(j for j, i in agreement.links if i == node)
        self.sums: list[Sums | None] = [None] * len(self.targets)
        self.arrived: list[Sums | None] = [None] * len(self.sources)
        self.newest = [-1] * len(self.sources)  # the step of each source's message that was taken last

    def send(self, k: int, body: memoryview, links: list[int]) -> None:
        """Add what step k sends over some of the links; where the file has grown too long, begin the next one."""
        self._grow(k, body, links)
        most = GROWTH * sum(one.nbytes for one in (*self.sums, *self.arrived) if one is not None)
        if self.length > max(_LEAST, most):
            self.begin()
            self.append(text for head, sums in self._all() for text in _record(head, sums.data.cast("B")))
        else:
            self.append(_record({"kind": "sent", "step": k, "links": links}, body))

    def _grow(self, k: int, body: memoryview, links: list[int]) -> None:
        x, w = split_step(body, self.agreement.config.engine.dtype)
        for link in links:  # a new array: messages that wait to be sent hold the one before
            self.sums[link] = grown(self.sums[link], x, w, self._share(k, self.node, self.targets[link]))

    def take(self, link: int, frame: Frame) -> None:
        """Keep a message that is taken over a link."""
        news = frame.step
        head = {"link": link, "step": frame.header.step}
        if news is not None and news.base == self.newest[link]:
            self.append(_record(head | {"kind": "news"}, news.body))
        else:
            self.append(_record(head | {"kind": "arrived"}, memoryview(frame.body)))
        self.arrived[link], self.newest[link] = frame.sums(), frame.header.step

    def replay(self) -> None:
        """Make the sums what they were at the commit whose place was read."""
        for file in self.read():
            (size,) = _HEAD.unpack(file.read(_HEAD.size))
            head = json.loads(file.read(size))
            body = np.empty(head["bytes"], np.uint8).data
            file.readinto(body)
            self._change(head, body)

    def _change(self, head: dict[str, Any], body: memoryview) -> None:
        kind, link = head["kind"], head.get("link", -1)
        if kind == "sent":
            self._grow(head["step"], body, head["links"])
        elif kind == "sums":
            self.sums[link] = np.frombuffer(body, np.float64)
        else:
            if kind == "news":
                x, w = split_step(body, self.agreement.config.engine.dtype)
                share = self._share(head["step"], self.sources[link], self.node)
                self.arrived[link] = grown(self.arrived[link], x, w, share)
            else:
                self.arrived[link] = np.frombuffer(body, np.float64)
            self.newest[link] = head["step"]

    def _all(self) -> Iterator[tuple[dict[str, Any], Sums]]:
        for link, sums in enumerate(self.sums):
            if sums is not None:
                yield {"kind": "sums", "link": link}, sums
        for link, sums in enumerate(self.arrived):
            if sums is not None:
                yield {"kind": "arrived", "link": link, "step": self.newest[link]}, sums

    def _share(self, k: int, source: int, target: int) -> float:
        share = self.agreement.share(k, (source, target))
        if share is None:
            raise AssertionError(f"step {k} does not use the link {source} → {target}")
        return share


def _record(head: dict[str, Any], body: memoryview) -> tuple[memoryview, memoryview]:
    text = json.dumps(head | {"bytes": len(body)}).encode()
    return memoryview(_HEAD.pack(len(text)) + text), body
