"""The same run on the simulated bad network, in one process."""

from __future__ import annotations

import dataclasses

import numpy as np

from privsgp import data
from privsgp.engine.folder import Folder
from privsgp.engine.trainer import Trainer
from privsgp.runs.build import build_run
from privsgp.runs.problem import assembled
from privsgp.sites.agreement import _changed
from privsgp.transport.lossy import Faults, LossyNetwork


def lockstep(c):
    """Return z and w of all nodes after a run of a consortium's study in which every message arrives in its step."""
    config = _changed(c.agreement.config, "engine", device="cpu")
    sets = [data.load(str(file), classes=10) for file in c.files]
    whole = dataclasses.replace(sets[0], x=np.concatenate([d.x for d in sets]), y=np.concatenate([d.y for d in sets]))
    parts = np.split(np.arange(len(whole.y)), np.cumsum([len(d.y) for d in sets])[:-1])
    spec = build_run(config, assembled(config, whole, parts))
    spec = dataclasses.replace(spec, checkpoint_every=0)

    class Simulated(Trainer):
        def _connect(self):
            return LossyNetwork(self.spec.graph, self.state.x, Faults())

    folder = Folder(c.folder / "simulated")
    with folder.locked():
        folder.prepare()
        folder.identify({}, None)
        s = Simulated(spec, folder).run().state
    return _flat(c, s), s.w.tolist()


def _flat(c, s):
    from privsgp.gradients import Layout
    from privsgp.runs.problem import first_model

    sample = c.agreement.values["sample"]
    model, _ = first_model(c.agreement.config, tuple(sample["shape"]), tuple(sample["target"]), sample["classes"])
    views = Layout.of(model).views(s.z)
    return np.concatenate([views[name].reshape(len(s.z), -1).numpy() for name in sorted(views)], 1)
