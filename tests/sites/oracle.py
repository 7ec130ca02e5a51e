"""The same run in one process: every message arrives in its step, or where and when the sites' logs say.

`lockstep` is a network of such links in which every message arrives in its step. `replayed` plays a logged run again:
the arithmetic of links is transport/link.py's, the steps are the Trainer's; nothing of privsgp/sites takes part.
"""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from links import Incoming, Lockstep, Outgoing, kept
from privsgp import data
from privsgp.engine.folder import Folder
from privsgp.engine.trainer import Trainer
from privsgp.runs.build import build_run
from privsgp.runs.problem import assembled
from privsgp.runs.resolve import resolve
from privsgp.transport.protocol import Transport


def lockstep(c):
    """Return z and w of all nodes after a run of a consortium's study in which every message arrives in its step."""
    config = c.agreement.config.with_section("engine", device="cpu")
    sets = [data.load(str(file), classes=10) for file in c.files]
    whole = dataclasses.replace(sets[0], x=np.concatenate([d.x for d in sets]), y=np.concatenate([d.y for d in sets]))
    parts = np.split(np.arange(len(whole.y)), np.cumsum([len(d.y) for d in sets])[:-1])
    spec = build_run(resolve(config, assembled(config, whole, parts)))
    spec = dataclasses.replace(spec, checkpoint_every=0)

    class Simulated(Trainer):
        def _connect(self):
            return Lockstep(self.spec.graph, self.state.x, self.spec.rounding(self.state.x))

    folder = Folder(c.folder / "simulated")
    with folder.locked():
        folder.prepare()
        folder.identify({})
        s = Simulated(spec, folder).run().state
    return flat(c, s.z), s.w.tolist()


class Replayed(Transport):
    """One node of a run whose messages are known: which it sent at each step, and which it took."""

    local = False

    def __init__(self, c, node, sky, rounding):
        self.graph, self.node, self.sky = c.agreement.graph, node, sky
        self.targets = sorted(i for j, i in c.agreement.links if j == node)
        self.sources = sorted(j for j, i in c.agreement.links if i == node)
        width = c.agreement.weights + 1
        self.message_bytes = 8 * width
        self.outgoing, self.incoming = Outgoing(len(self.targets), width), Incoming(len(self.sources), width)
        self.log, self.sent, self.rounding = c.steps(node), {}, rounding

    def messages(self, k):
        return len(self.log[k]["sent"])

    def mix(self, k, x, w):
        rows, edges = torch.cat([x.double(), w[:, None]], 1), self.graph.edges(k)
        share = {int(i): s for j, i, s in zip(edges.source, edges.target, edges.share, strict=True) if j == self.node}
        given, grown = 0.0, []
        for target in self.log[k]["sent"]:
            link = self.targets.index(target)
            before = self.outgoing.sums[0, link].clone()
            share_of = rows * share[target] if self.rounding is None else self.rounded(k, x, w, target, share[target])
            self.outgoing.send(k, [link], share_of)
            given += share[target]
            self.sent.setdefault(target, {})[k] = share_of
            self.sky.put((self.node, target, k), self.outgoing.message(k, [link]).clone())
            grown.append(self.outgoing.sums[0, link] - before)
        for link, target in enumerate(self.targets):
            if target not in self.log[k]["sent"]:  # through a relay a message without a share may have left
                self.sky.put((self.node, target, k), self.outgoing.message(k, [link]).clone())
        mixed = rows * (1 - given) if self.rounding is None else kept(x, rows, [0] * len(grown), grown)
        for source, step in self.log[k]["taken"]:
            news = self.sky.get((source, self.node, step))
            mixed += self.incoming.receive(step, [self.sources.index(source)], news)
        for target, taken in self.log[k].get("returned", []):  # to who left; what it had not taken comes back
            mixed += sum(brought for step, brought in self.sent[target].items() if step > taken)
        return mixed[:, :-1].to(x.dtype), mixed[:, -1].clone().reshape(-1)[:1].contiguous()

    def rounded(self, k, x, w, target, share):
        """Return what a link carries at a step in few bits; it began anew where the log says so."""
        link = self.node, target
        if target in self.log[k].get("anew", []):
            self.rounding.begin(link, self.outgoing.sums[0, self.targets.index(target)])
        carrying = self.rounding.carrying([link], [share])
        codes, weights = self.rounding.codes(k, carrying, x, w)
        return torch.cat([self.rounding.shares(carrying, codes, weights).double(), weights[:, None]], 1)


class Sky:
    """All messages that were ever sent."""

    def __init__(self):
        self.sums, self.changed = {}, threading.Condition()

    def put(self, name, sums):
        with self.changed:
            self.sums[name] = sums
            self.changed.notify_all()

    def get(self, name):
        with self.changed:
            assert self.changed.wait_for(lambda: name in self.sums, 30), f"{name} was never sent"
            return self.sums[name]


def replayed(c):
    """Return z and w of all nodes after playing a consortium's run again by its logs."""
    sky, n, one_at_a_time = Sky(), len(c.sites), threading.Lock()

    def play(node):
        with one_at_a_time:  # torch.func is not for several threads
            spec = c.agreement.spec(data.load(str(c.files[node]), classes=10), node)
        spec = dataclasses.replace(spec, checkpoint_every=0)

        class Player(Trainer):
            def _connect(self):
                return Replayed(c, node, sky, self.spec.rounding(self.state.x))

        folder = Folder(c.folder / f"replayed-{node}")
        with folder.locked():
            folder.prepare()
            folder.identify({})
            with one_at_a_time:
                player = Player(spec, folder)
            return player.run().state

    with ThreadPoolExecutor(n) as pool:
        states = list(pool.map(play, range(n)))
    return [flat(c, s.z)[0] for s in states], [float(s.w[0]) for s in states]


def flat(c, z):
    """Return rows of parameters in the order of a model's file."""
    from privsgp.gradients import Layout
    from privsgp.runs.problem import first_model

    sample = c.agreement.values["sample"]
    model, _ = first_model(c.agreement.config, tuple(sample["shape"]), tuple(sample["target"]), sample["classes"])
    views = Layout.of(model).views(torch.as_tensor(z))
    return np.concatenate([views[name].reshape(len(z), -1).numpy() for name in sorted(views)], 1)
