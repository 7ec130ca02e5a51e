"""The run: K steps of an algorithm on all nodes of this process, with everything that must happen around a step.

`Trainer.run` is the loop. A step itself, the paper's lines 5 to 14, is `PushSum.step` in algorithms/push_sum.py.
Messages leave through `drive` (drive.py). node_randomness.py has the draws, and evaluate.py the metrics.
"""

from __future__ import annotations

import copy
import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from privsgp.algorithms import Block, Exchange, PushSum, State, UpdateRule
from privsgp.algorithms.block import as_it_is
from privsgp.devices import current, device_of, in_threads, keep_memory
from privsgp.engine import checkpoint
from privsgp.engine.averaging import Averaging
from privsgp.engine.budget_guard import BudgetGuard
from privsgp.engine.checkpoint import Progress
from privsgp.engine.drive import RunDriver, drive
from privsgp.engine.evaluate import Evaluator, average
from privsgp.engine.groups import Group, one_at_a_time, same_in_slots, split, together
from privsgp.engine.node_randomness import NodeRandomness
from privsgp.engine.spec import hidden_slots, refuse_coarser
from privsgp.engine.step import Recorded, chosen
from privsgp.engine.stopping import Stopping
from privsgp.errors import Diverged, Interrupted
from privsgp.gradients import Layout, stack
from privsgp.gradients.persons import of_samples
from privsgp.gradients.rules.ruled import Ruled
from privsgp.outside import Whole
from privsgp.transport.in_process import InProcess
from privsgp.transport.protocol import refuse_wild
from privsgp.transport.rendezvous import Processes
from privsgp.transport.torch_distributed import TorchDistributed
from privsgp.transport.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from privsgp.algorithms import Algorithm, Step
    from privsgp.engine.folder import Folder
    from privsgp.engine.spec import RunSpec
    from privsgp.gradients import Stacked
    from privsgp.randomness.noise import KeyExchange
    from privsgp.transport.protocol import Transport

    Watcher = Callable[[int, dict[str, Any] | None], None]

_LOG = logging.getLogger(__name__)
_LEAST_WEIGHT = 2.0**-20  # of a node's weight w, which is 1 at the start: below this, a single step decides z = x / w
_WITHOUT = 64  # steps between two looks at whether to stop, where there are no checkpoints


@dataclass
class Outcome:
    """The outcome of a run."""

    state: State  # of this process's nodes
    average: Tensor | None  # of all nodes; None in all processes but the first
    metrics: list[dict[str, Any]]
    steps: int
    seconds: float
    bytes_sent: int
    releases: list[int]  # of all nodes
    measured: dict[str, Any] = field(default_factory=dict)  # metrics of the final model, where they may be seen
    gradients: str | None = None  # how they were computed, in words


class Trainer:
    """One run of a job in a folder; with others in `world`, this process's share of it."""

    def __init__(
        self, spec: RunSpec, folder: Folder, watch: Watcher | None = None, world: World | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.world = world or World()
        self.watch = watch or (lambda _step, _row: None)
        self.layout = Layout.of(spec.learning.model)
        self.model = copy.deepcopy(spec.learning.model).to(spec.device, spec.dtype)
        self.gradient = self._gradient(spec)
        self.spec = spec = replace(spec, scattered=hidden_slots(spec) and not same_in_slots(self.gradient, spec))
        self.state = self._start()
        self.transport = self._connect()
        self.randomness = NodeRandomness.of_run(spec, self._exchange())
        self.budget_guard = BudgetGuard(spec, folder, self.world)
        self.update_rule = self._update_rule()
        self.averaging = Averaging(spec.final_model, spec.steps, self.state)
        self.groups = self._groups()
        self.step = self._stepper()
        self.driver = self._driver()
        known = spec if spec.simulation else spec.without_records()
        self.evaluator = Evaluator(self.model, self.layout, known, self.world, folder.keep_metrics)
        self.stopping = Stopping()
        if device_of(spec.device).in_host_memory:
            keep_memory()

    def run(self) -> Outcome:
        """Take the steps that are still to be taken, and return what came out."""
        spec, started = self.spec, time.perf_counter()
        current(spec.device)
        refuse_coarser(spec)
        k, spent = self._begin()
        rows = [] if self.world.rank else self.folder.start_metrics(simulation=spec.simulation, up_to=k)
        with self.stopping, self.budget_guard:
            self._recover()
            while k < spec.steps and self.budget_guard.reserve(k):
                self.state = drive(self.step(k, self.state), k, self.driver)
                self.averaging.add(k, self.state)
                k += 1
                seconds = spent + time.perf_counter() - started
                if k % spec.evaluate_every == 0 or (k == spec.steps and self.world.alone):
                    rows = [row for row in rows if row["step"] < k] + [self._evaluate(k, seconds)]
                stop = self._keep(k, seconds)
                self.watch(k, rows[-1] if rows else None)
                if stop:
                    raise Interrupted(k)
            if k < spec.steps:
                self._checkpoint(k, spent + time.perf_counter() - started)
        return self._end(k, rows, spent + time.perf_counter() - started)

    def close(self) -> None:
        """Drop references to this object; the outcome stays with the caller."""
        for own in ("step", "driver"):
            vars(self).pop(own, None)
        for group in self.groups:
            group.algorithm.close()

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of all nodes here, where they are one group."""
        return self.groups[0].algorithm

    @property
    def _on_gpu(self) -> bool:
        """Whether all nodes are in this process, on a device with kernels of its own."""
        return self.transport.local and device_of(self.spec.device).has_cudnn

    def _connect(self) -> Transport:
        """Return what carries the messages."""
        graph, x, rounding = self.spec.graph, self.state.x, self.spec.rounding(self.state.x)
        if isinstance(self.world, Processes):
            return TorchDistributed(graph, x, self.world, rounding)
        return InProcess(graph, x, rounding)

    def _driver(self, sent: int = 0) -> RunDriver:
        """Return what does what the events of a step ask for; so many bytes were sent before."""
        return RunDriver(self.transport, self.budget_guard, sent)

    def _recover(self) -> None:
        """Finish what was begun before a crash: nothing, where steps are whole or not at all."""

    def _exchange(self) -> KeyExchange | None:
        """Return how nodes agree on secrets with those elsewhere; None where they do not."""
        return None

    def _end(self, k: int, rows: list[dict[str, Any]], seconds: float) -> Outcome:
        """Put together what came out; of several processes only the first sees all nodes, and only now."""
        final = self._mixed_on(k, self.averaging.released(self.state))
        refuse_no_model(k, final, self.spec.here)
        s = self._gathered(final)
        mixed = self.spec.final_model.final_mixing or k < self.spec.steps  # since the last row
        if s is not None and (not rows or rows[-1]["step"] != k or not self.transport.local or mixed):
            rows = [row for row in rows if row["step"] < k] + [self.evaluator.measured(k, seconds, s)]
            self.folder.write_metrics(rows, simulation=self.spec.simulation)
            self._refuse_nonsense(k, rows[-1])
        return Outcome(
            state=final,
            average=None if s is None or self.spec.apart or len(s.w) < self.spec.nodes else average(s),
            metrics=rows,
            steps=k,
            seconds=seconds,
            bytes_sent=sum(self.world.all_gather(self.driver.bytes_sent, Whole)),
            releases=self.world.all_gather_nodes(self.budget_guard.releases(), Whole, self.spec.nodes),
            measured={} if s is None else self.evaluator.final(k, s),
            gradients=self.algorithm.block.gradient.how,
        )

    def _mixed_on(self, k: int, s: State) -> State:
        """Mix without gradients, so that the nodes agree: of what was sent before, nothing new is revealed."""
        every = self.spec.settings.local_steps
        for r in range(k + -(k + 1) % every, k + self.spec.final_model.final_mixing * every, every):
            s = State.debiased(*self.driver(r, Exchange(s.x, s.w)))
        return s

    def _gathered(self, s: State) -> State | None:
        """Return the state of all nodes; None in all processes but the first."""
        if self.transport.local:
            return s
        whole = self.transport.gather(s.x, s.w)
        return None if whole is None else State.debiased(*whole)

    def _start(self) -> State:
        return State.start(self.layout.flatten(self.model), len(self.spec.here))

    def _begin(self) -> tuple[int, float]:
        """Return (steps done, seconds spent): from the last checkpoint that all processes have, or from x⁰."""
        self._in_groups(lambda group: group.algorithm.begin(self.state.z[group.nodes]))
        found = checkpoint.last_common(self.folder, self.world, self.spec.shared_hash)
        if found is None:
            progress = Progress(0, 0, 0.0, 0, self.spec.shared_hash)
        else:
            path, progress = found
            self.state = checkpoint.load_into(path, self.state, self._memory())
            self._in_groups(lambda group: group.algorithm.restored(self.state.z[group.nodes]))
        self.driver = self._driver(progress.bytes_sent)
        self.budget_guard.resume(progress.step)
        return progress.step, progress.seconds

    def _keep(self, k: int, seconds: float) -> bool:
        """Write a checkpoint where one is due and tell whether to stop; several processes stop where one is due.

        A run that diverged is noticed there too.
        """
        stop = self.stopping.asked and k < self.spec.steps  # asked once: a signal may come at any moment
        due = k % (self.spec.checkpoint_every or _WITHOUT) == 0 or k == self.spec.steps
        if due or (stop and self.world.alone):
            self._checkpoint(k, seconds)
        if self.world.alone:
            return stop
        return due and any(self.world.all_gather(stop, bool))

    def _checkpoint(self, k: int, seconds: float) -> None:
        refuse_wild(k, self.state.x, self.spec.here)
        if not self.spec.checkpoint_every:
            return  # a simulation can be repeated, and its table may be larger than the disk
        heads = self.budget_guard.heads()
        progress = Progress(k, 0, seconds, self.driver.bytes_sent, self.spec.shared_hash, heads)
        if not self.world.alone and self.folder.checkpoint.exists():
            self.folder.checkpoint.replace(self.folder.checkpoint_before)
        checkpoint.save(self.folder.checkpoint, progress, self.state, self._memory(), self.folder.run or "")

    def _memory(self) -> dict[str, list[Tensor]]:
        """Return what must survive besides x and w: the algorithm's, and what is on its way between sites."""
        update_rule = {} if self.update_rule is None else self.update_rule.arrays()
        parts = {"links": self.transport.arrays(), "update_rule": update_rule, "averaging": self.averaging.arrays()}
        around = {f"{prefix}.{name}": [value] for prefix, own in parts.items() for name, value in own.items()}
        each = [group.algorithm.arrays() for group in self.groups]
        return {name: [arrays[name] for arrays in each] for name in each[0]} | around

    def _evaluate(self, k: int, seconds: float) -> dict[str, Any]:
        row = self.evaluator.row(k, seconds, self.averaging.released(self.state))
        if self.world.rank == 0:
            self.folder.append_metrics(row)
        self._refuse_nonsense(k, row)
        return row

    def _refuse_nonsense(self, k: int, row: dict[str, Any]) -> None:
        if not self.spec.algorithm.private and row.get("test_loss", 0.0) is None:
            # Gradients that overflow count as 0: the messages may stay finite.
            raise Diverged(k, "the test loss is not finite")

    def _gradient(self, spec: RunSpec) -> Stacked:
        """Return what computes the gradients of samples."""
        own = spec.learning
        gradient = of_samples(stack(self.model, own.loss, own.made_up(), rules=spec.rules), own.rows)
        _LOG.log(logging.INFO if gradient.how == Ruled.how else logging.WARNING, "gradients: %s", gradient.how)
        return gradient

    def _groups(self) -> list[Group]:
        """Return the algorithms of the nodes here: one for all, or on a CPU one for each core."""
        spec, loss, gradient = self.spec, self.spec.learning.loss, self.gradient
        several = self.transport.local and self.update_rule is None
        slices = split(spec, gradient) if several else [slice(0, len(spec.here))]
        if len(slices) == 1:
            block = self._block(spec, gradient, self.randomness)
            return [Group(slices[0], spec.algorithm(block, spec.settings))]
        loss, groups = one_at_a_time(loss), []
        for nodes in slices:
            prefix = spec.for_nodes(nodes)
            own = of_samples(stack(self.model, loss, spec.learning.made_up()), spec.learning.rows)
            block = self._block(prefix, own, self.randomness.of(prefix))
            groups.append(Group(nodes, spec.algorithm(block, spec.settings)))
        return groups

    def _in_groups(self, work: Callable[[Group], None]) -> None:
        """Do some work for each group, in a thread of its own; torch has all threads where there is one group."""
        if len(self.groups) > 1:
            in_threads(work, self.groups)
        else:
            work(self.groups[0])

    def _block(self, spec: RunSpec, gradient: Stacked, randomness: NodeRandomness) -> Block:
        return Block(
            mechanisms=spec.mechanisms,
            data=spec.learning.data,
            gradient=gradient,
            random=randomness,
            step_size=spec.step_size,
            update_rule=self.update_rule,
            recorded=Recorded if self._on_gpu and isinstance(gradient, Ruled) else as_it_is,
        )

    def _update_rule(self) -> UpdateRule | None:
        spec = self.spec
        scale = None if spec.weights is None else [spec.nodes * spec.weights[i] for i in spec.here]
        plain = not spec.momentum and scale is None
        return None if plain else UpdateRule(self.state.x, momentum=spec.momentum, scale=scale)

    def _stepper(self) -> Callable[[int, State], Step]:
        """Choose whose steps are driven: the algorithm's own, those of its groups, or a GPU's in fewer launches."""
        if len(self.groups) > 1:
            return self._together
        source = self.randomness.node_noise.kernel_source
        whole = self.spec.bits == 32 and self.spec.settings.local_steps == 1  # the kernels know no other messages
        if self._on_gpu and whole and source is not None and isinstance(self.algorithm, PushSum):
            return chosen(self.algorithm, self.spec.graph, source, self.state.x)
        return self.algorithm.step

    def _together(self, k: int, s: State) -> Step:
        self.randomness.node_noise.begin(k, s.x)
        return together(self.groups, k, s)


def refuse_no_model(k: int, s: State, nodes: range) -> None:
    """End the run where what a node is left with is no model."""
    refuse_wild(k, s.x, nodes)
    for node, w in zip(nodes, s.w.tolist(), strict=True):
        if not w >= _LEAST_WEIGHT:
            remedy = "z = x / w is no model: take more steps after the last fault, or a denser [graph]"
            raise Diverged(k, f"the weight of node {node} is w = {w:.2g}", remedy)
    refuse_wild(k, s.z, nodes)
