"""The run: K steps of an algorithm on all nodes of this process, with everything that must happen around a step.

`Training.run` is the loop. A step itself, the paper's lines 5 to 14, is `PushSum.step` in algorithms/push_sum.py.
"""

from __future__ import annotations

import copy
import functools
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privsgp.algorithms import Block, Drawn, PushSum, State, Steering, Turns
from privsgp.clock import Events
from privsgp.engine import checkpoint
from privsgp.engine.ahead import Ahead
from privsgp.engine.averaging import Averaging
from privsgp.engine.checkpoint import Progress
from privsgp.engine.distributed import Across
from privsgp.engine.evaluate import Evaluator, average, consensus_error, present
from privsgp.engine.job import NOT_DP, public_seed, refuse_coarser
from privsgp.engine.memory import keep_memory
from privsgp.engine.mix import InProcess
from privsgp.engine.payments import Payments
from privsgp.engine.rendezvous import World
from privsgp.engine.robust import Robust
from privsgp.engine.step import OnDevice, suits
from privsgp.engine.stops import Diverged, Interrupted, ReplayDiffers
from privsgp.errors import Refused
from privsgp.gradient import Layout, stack
from privsgp.privacy.noise import Keyed, Secure, add_noise_
from privsgp.privacy.sampling import batches, capacity, draw, draw_all, draw_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from privsgp.engine.folder import Folder
    from privsgp.engine.job import Job, PerSampleFunction

    Watcher = Callable[[int, dict[str, Any] | None], None]


@dataclass
class Outcome:
    """What a run ends with."""

    state: State  # of this process's nodes
    average: Tensor | None  # of all nodes; None in all processes but the first
    metrics: list[dict[str, Any]]
    steps: int
    seconds: float
    bytes_sent: int
    releases: list[int]  # of all nodes
    faults: dict[str, Any] | None = None


class Training:
    """One run of a job in a folder; with others in `world`, this process's share of it."""

    def __init__(self, job: Job, folder: Folder, watch: Watcher | None = None, world: World | None = None) -> None:
        self.job, self.folder = job, folder
        self.world = world or World()
        self.watch = watch or (lambda _step, _row: None)
        self.source = Ahead(Secure() if job.seed is None else Keyed(job.seed), job.here)
        self.attempt = 0
        self.bytes_sent = 0
        self.layout = Layout.of(job.learning.model)
        self.model = copy.deepcopy(job.learning.model).to(job.device, job.dtype)
        self.state = self._start()
        self.transport = self._transport()
        self.payments = Payments(job, folder, self.world)
        self.steering = self._steering()
        self.averaging = Averaging(job.release, job.steps, self.state)
        self.algorithm = job.algorithm(self._block(), job.settings)
        self.step = self._stepper()
        self.evaluator = Evaluator(self.model, self.layout)
        self._stop = False
        if job.device.type == "cpu":
            keep_memory()
        self._drawn: tuple[int, int, list[Drawn]] | None = None
        self._unnoted: tuple[int, Tensor] | None = None

    def run(self) -> Outcome:
        """Take the steps that are still to be taken, and return what came out."""
        job, started = self.job, time.perf_counter()
        refuse_coarser(job)
        k, spent = self._begin()
        rows = self._start_metrics(k)
        with self._interruptible(), self.payments:
            self.attempt = max(self.world.exchange(max(self.attempt, self.payments.attempt(k))))
            while k < job.steps and self.payments.granted(k, self.attempt):
                try:
                    self.state = self.step(k, self.state)
                    self._note()
                except ReplayDiffers:
                    k = self._again(k)
                    rows = self._start_metrics(k)
                    continue
                self.averaging.add(k, self.state)
                k += 1
                seconds = spent + time.perf_counter() - started
                if k % job.evaluate_every == 0 or (k == job.steps and self.world.alone):
                    rows = [row for row in rows if row["step"] < k] + [self._evaluate(k, seconds)]
                stop = self._keep(k, seconds)
                self.watch(k, rows[-1] if rows else None)
                if stop:
                    raise Interrupted(k, kept=self.folder.checkpoint.exists())
            if k < job.steps:
                self._checkpoint(k, spent + time.perf_counter() - started)
        return self._end(k, rows, spent + time.perf_counter() - started)

    def _end(self, k: int, rows: list[dict[str, Any]], seconds: float) -> Outcome:
        """Put together what came out; of several processes only the first sees all nodes, and only now."""
        final = self._mixed_on(k, self.averaging.released(self.state))
        s: State | None = final
        if isinstance(self.transport, Across):
            whole = self.transport.gather(final.x, final.w)
            s = None if whole is None else _debiased(*whole)
        if s is not None and (not rows or rows[-1]["step"] != k or not self.world.alone or self.job.release.mixing):
            rows = [row for row in rows if row["step"] < k] + [self._measure(k, seconds, s)]
            self.folder.write_metrics(rows, self._mark)
            self._refuse_nonsense(k, rows[-1])
        return Outcome(
            state=final,
            average=None if s is None or self._apart else average(s),
            metrics=rows,
            steps=k,
            seconds=seconds,
            bytes_sent=sum(self.world.exchange(self.bytes_sent)),
            releases=[r for own in self.world.exchange(self.payments.releases()) for r in own],
            faults=self.transport.report() if isinstance(self.transport, Robust) else None,
        )

    def _mixed_on(self, k: int, s: State) -> State:
        """Mix without gradients, so that the nodes agree: of what was sent before, nothing new is revealed."""
        for r in range(k, k + self.job.release.mixing):
            self.bytes_sent += self._bytes(r, s.x)
            s = _debiased(*self.transport(r, s.x, s.w))
        return s

    def _start(self) -> State:
        return State.start(self.layout.flatten(self.model), len(self.job.here))

    def _transport(self) -> InProcess | Across | Robust:
        """Choose what is behind `mix`: algorithms never know."""
        job = self.job
        if not self.world.alone:
            return Across(job.graph, self.state.x, self.world, self._meanwhile)
        if job.faults is not None:
            return Robust(job.graph, self.state.x, job.faults)
        return InProcess(job.graph, self.state.x)

    def _start_metrics(self, k: int) -> list[dict[str, Any]]:
        """Begin the metrics, or go on with those of an earlier attempt; they are kept by the first process."""
        if self.world.rank:
            return []
        return self.folder.start_metrics(self._mark, up_to=k)

    @property
    def _mark(self) -> dict[str, Any]:
        """What a reader of the metrics must know first."""
        return {"simulation": self.job.simulation} | ({"not_dp": NOT_DP} if self.job.not_dp else {})

    def _begin(self, *, fresh_noise: bool = False) -> tuple[int, float]:
        """Return (steps done, seconds spent): from the last checkpoint that all processes have, or from x⁰."""
        self.algorithm.begin(self._start().z)
        self.averaging.forget()
        if self.steering is not None:
            self.steering.forget()
        found = self._last_common()
        if found is None:
            self.state = self._start()
            self.transport = self._transport() if isinstance(self.transport, Robust) else self.transport
            done, spent, attempt = 0, 0.0, 0
            self.bytes_sent = 0
        else:
            path, progress = found
            self.state = checkpoint.load_into(path, self.state, self._memory())
            done, spent, attempt = progress.step, progress.seconds, progress.attempt
            self.bytes_sent = progress.bytes_sent
        # Noise that may have been sent is never used again with other inputs: a replay that differs starts afresh.
        self.attempt = max(attempt, self.attempt + 1 if fresh_noise else self.attempt)
        return done, spent

    def _last_common(self) -> tuple[Path, Progress] | None:
        """Find the last checkpoint that every process has: one may have died before it wrote what others have."""
        mine: dict[int, tuple[Path, Progress]] = {}
        for path in (self.folder.checkpoint_before, self.folder.checkpoint):
            if path.exists():
                progress = checkpoint.read_progress(path)
                mine[progress.step] = path, progress
                if progress.shared != self.job.shared_hash:
                    raise Refused(
                        f"{path} belongs to another configuration", "resume with the configuration that wrote it"
                    )
        everybody = self.world.exchange(list(mine))
        common = set(everybody[0]).intersection(*everybody[1:])
        return mine[max(common)] if common else None

    def _again(self, k: int) -> int:
        """Go back to the checkpoint, with fresh noise; several processes do so when all are started again."""
        if not self.world.alone:
            self.payments.announce(k, self.attempt + 1)
            raise self.world.lost(self.world.rank, "its replay of a step differs: all begin again with fresh noise")
        done, _ = self._begin(fresh_noise=True)
        self.payments.rewind()
        return done

    def _keep(self, k: int, seconds: float) -> bool:
        """Write a checkpoint where one is due and tell whether to stop; several processes stop at a common one."""
        stop = self._stop and k < self.job.steps  # asked once: a signal may come at any moment
        every = self.job.checkpoint_every
        due = (every > 0 and k % every == 0) or k == self.job.steps
        if due or (stop and self.world.alone):
            self._checkpoint(k, seconds)
        if self.world.alone:
            return stop
        return due and any(self.world.exchange(stop))

    def _checkpoint(self, k: int, seconds: float) -> None:
        finite = self.state.x.isfinite().all(1)
        if not bool(finite.all()):
            raise Diverged(k, f"the message of node {self.job.here[int(finite.logical_not().nonzero()[0])]}")
        if not self.job.checkpoint_every:
            return  # a simulation can be repeated, and its table may be larger than the disk
        progress = Progress(k, self.attempt, seconds, self.bytes_sent, self.job.shared_hash)
        if not self.world.alone and self.folder.checkpoint.exists():
            self.folder.checkpoint.replace(self.folder.checkpoint_before)
        checkpoint.save(self.folder.checkpoint, progress, self.state, self._memory())

    def _memory(self) -> dict[str, Tensor]:
        """Return what must survive besides x and w: the algorithm's, and what is on its way on a faulty network."""
        links = self.transport.arrays() if isinstance(self.transport, Robust) else {}
        steering = {} if self.steering is None else self.steering.arrays()
        parts = {"links": links, "steering": steering, "averaging": self.averaging.arrays()}
        around = {f"{part}.{name}": value for part, own in parts.items() for name, value in own.items()}
        return self.algorithm.arrays() | around

    def _evaluate(self, k: int, seconds: float) -> dict[str, Any]:
        """Measure now and then. With several processes nobody sees the average model: nodes tell their own metrics."""
        if self.world.alone:
            row = self._measure(k, seconds, self.averaging.released(self.state))
        else:
            own_models = self.averaging.released(self.state)
            told = [accuracy for own in self.world.exchange(self._accuracies(own_models)) for accuracy in own]
            row = self._times(k, seconds) | _spread(told)
        if self.world.rank == 0:
            self.folder.append_metrics(row)
        self._refuse_nonsense(k, row)
        return row

    def _refuse_nonsense(self, k: int, row: dict[str, Any]) -> None:
        if not self.job.algorithm.private and row.get("test_loss", 0.0) is None:
            raise Diverged(k, "the test loss")  # gradients that overflow count as 0: the messages may stay finite

    def _measure(self, k: int, seconds: float, s: State) -> dict[str, Any]:
        """Measure all nodes on public test data; on training data only in simulation, where it is all here."""
        job = self.job
        models = s.z if self._apart else average(s)[None]
        row = self._times(k, seconds)
        row["consensus_error"] = _number(consensus_error(s))
        if job.learning.test is not None:
            row["test_loss"] = _number(self._tested(job.learning.loss, models))
            if job.learning.correct is not None:
                row["test_accuracy"] = self._tested(job.learning.correct, models)
        row |= _spread(self._accuracies(s))
        if job.simulation and self.world.alone and not self._apart:  # nodes on their own have no f(x̄)
            row["train_loss"] = _number(self._train_loss(models[0]))
        return row

    @property
    def _apart(self) -> bool:
        """Whether nodes keep to themselves: an average of their models would be nobody's."""
        return self.job.algorithm.network == "alone" and self.job.nodes > 1

    def _tested(self, function: PerSampleFunction, models: Tensor) -> float:
        """Return the mean of a per-sample function over the test data and over models [·, d]."""
        assert self.job.learning.test is not None  # noqa: S101
        return float(np.mean([self.evaluator.mean(function, x, *self.job.learning.test) for x in models]))

    def _times(self, k: int, seconds: float) -> dict[str, Any]:
        # Milliseconds would show how many samples were drawn.
        spent = round(seconds, 3 if self.job.simulation else 0)
        return {"step": k, "seconds": spent, "virtual_seconds": self.job.clock.at(k)}

    def _accuracies(self, s: State) -> list[float]:
        """Return the test accuracy of each node's own model z_i, where there is such a thing."""
        test, correct = self.job.learning.test, self.job.learning.correct
        if test is None or correct is None:
            return []
        return [self.evaluator.mean(correct, z, *test) for z in s.z[present(s)]]

    def _train_loss(self, mean: Tensor) -> float:
        """Return f(x̄) = (1/n) Σ_i f_i(x̄)."""
        learning, per_node = self.job.learning, []
        for i, mechanism in enumerate(self.job.mechanisms):
            rows = slice(0, mechanism.samples)
            data = learning.inputs[i, rows], learning.targets[i, rows]
            per_node.append(self.evaluator.mean(learning.loss, mean, *data))
        return float(np.mean(per_node))

    def _block(self) -> Block:
        job, learning = self.job, self.job.learning
        probe = _made_up(learning.inputs, learning.targets)
        return Block(
            mechanisms=job.mechanisms,
            inputs=learning.inputs,
            targets=learning.targets,
            gradient=stack(self.model, learning.loss, probe, rules=job.rules),
            sample=self._sample,
            noise=self._noise,
            mix=self._mix,
            release=self._release,
            step_size=job.step_size,
            average=self._serve,
            public=self._public,
            turns=self._turns(),
            steering=self.steering,
            private=self.folder.checkpoint.parent,
        )

    def _turns(self) -> Turns | None:
        """Return what nodes need that act one at a time."""
        clock = self.job.clock
        if not isinstance(clock, Events):
            return None
        return Turns(clock.of, self._sample_some, self._noise_one, self._average, self._release_one)

    def _steering(self) -> Steering | None:
        job = self.job
        scale = None if job.weights is None else [job.nodes * job.weights[i] for i in job.here]
        if not job.momentum and not job.normalised and scale is None:
            return None
        return Steering(self.state.x, momentum=job.momentum, normalised=job.normalised, scale=scale)

    def _sample(self, k: int) -> list[Drawn]:
        drawn, self._drawn = self._drawn, None
        samples = drawn[2] if drawn is not None and drawn[:2] == (k, self.attempt) else self._draw(k)
        if any(m.sigma for m in self.job.mechanisms):
            self.source.begin(self.state.x, k, self.attempt)
        return samples

    def _draw(self, k: int) -> list[Drawn]:
        job, block = self.job, self.job.settings.block_size
        if block == 1:
            releases = [mechanism.at(k) for mechanism in job.mechanisms]
            return self._passes(draw_all(self.source, releases, job.here, k, self.attempt))
        each = zip(job.here, job.mechanisms, strict=True)
        by_block = functools.partial(draw_blocks, size=block, dummy=self._dummy)
        return self._passes([by_block(self.source, m, i, k, self.attempt) for i, m in each])

    def _sample_some(self, numbers: Mapping[int, int]) -> list[Drawn]:
        """Draw for some nodes, each by the number of its own gradient."""
        nothing, mechanisms = np.empty(0, np.int64), self.job.protection.mechanisms
        draws = [
            draw(self.source, mechanisms[i], i, numbers[i], self.attempt) if i in numbers else nothing
            for i in self.job.here
        ]
        return self._passes(draws)

    @property
    def _dummy(self) -> int:
        return self.job.learning.inputs.shape[1] - 1

    def _passes(self, draws: Sequence[np.ndarray[Any, Any]]) -> list[Drawn]:
        passes = [self._placed(rows) for rows, _ in batches(draws, self._slots, self._dummy)]
        return [Drawn(rows, rows != self._dummy) for rows in passes]

    @functools.cached_property
    def _slots(self) -> int:
        """The size of a batch, by the mechanisms of all nodes: it is the same wherever one lives."""
        block = self.job.settings.block_size
        return max(capacity(m, self.job.nodes, block) for m in set(self.job.protection.mechanisms))

    def _placed(self, values: np.ndarray[Any, Any]) -> Tensor:
        """Copy to the device; from page-locked memory nobody has to wait for the copy."""
        there = torch.from_numpy(values)
        return there.pin_memory().to(self.job.device, non_blocking=True) if self.job.device.type == "cuda" else there

    def _noise(self, k: int, g: Tensor) -> None:
        sigma = [m.at(k).sigma for m in self.job.mechanisms]
        if any(sigma):
            add_noise_(g, self.source, self.job.here, k, sigma=sigma, attempt=self.attempt)
            if k + 1 < self.job.steps and isinstance(self.transport, InProcess):  # others draw while messages travel
                self.source.begin(self.state.x, k + 1, self.attempt)

    def _noise_one(self, i: int, number: int, g: Tensor) -> None:
        sigma = self.job.protection.mechanisms[i].sigma
        if sigma:
            add_noise_(g, self.source, [i], number, sigma=[sigma], attempt=self.attempt)

    def _meanwhile(self, k: int) -> None:
        """Draw the next step's samples and noise while the messages of step k travel."""
        if k + 1 < self.job.steps:
            self._drawn = k + 1, self.attempt, self._draw(k + 1)
            if any(m.sigma for m in self.job.mechanisms):
                self.source.prepare(self.state.x, k + 1, self.attempt)

    def _release(self, k: int, message: Tensor) -> None:
        """Note the messages of step k before they leave. In one process nothing leaves before the step is over."""
        self._unnoted = k, message
        if not isinstance(self.transport, InProcess):
            self._note()

    def _note(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Hash what was released and write it down, while one of two cores may do something else."""
        noted, self._unnoted = self._unnoted, None
        if noted is not None:
            self.payments.sending(*noted, meanwhile)

    def _release_one(self, i: int, number: int, message: Tensor) -> None:
        self.payments.sending_one(i, number, message)

    def _average(self, i: int, j: int, x: Tensor) -> None:
        """Let i and j send each other their models, and both take the mean."""
        x[i].add_(x[j]).div_(2)
        x[j] = x[i]
        self.bytes_sent += 2 * x[i].nbytes if i != j else 0

    def _mix(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        self.bytes_sent += self._bytes(k, x)
        if self._unnoted is None:
            return self.transport(k, x, w)
        mixed: list[tuple[Tensor, Tensor]] = []
        self._note(lambda: mixed.append(self.transport(k, x, w)))
        return mixed[0]

    def _public(self, purpose: str, k: int) -> np.random.Philox:
        seed = public_seed(self.job.seed, self.job.shared_hash, purpose)
        return np.random.Philox(key=seed % 2**128, counter=[0, 0, 0, k])

    def _serve(self, k: int, messages: Tensor, size: int) -> Tensor:
        """Return what a server makes of everybody's messages, [d]; it sends the result back to all."""
        del k
        mean = messages.mean(0, dtype=torch.float64).to(messages.dtype)
        self.bytes_sent += len(messages) * (size + mean.nbytes)
        return mean

    def _announce(self, k: int, x: Tensor) -> int:
        """Note the messages of step k, before they exist; return the attempt they are made at."""
        self.payments.sending(k, x)
        self.bytes_sent += self._bytes(k, x)
        return self.attempt

    def _bytes(self, k: int, x: Tensor) -> int:
        number = 8 if isinstance(self.transport, Robust) else x.element_size()
        return self.transport.messages(k) * (x.shape[1] * number + self.state.w.element_size())

    def _stepper(self) -> Callable[[int, State], State]:
        """Choose who takes the steps: the algorithm itself, or the same on a GPU in fewer launches."""
        source, graph, x = self.source.source, self.job.graph, self.state.x
        alone = isinstance(self.transport, InProcess)
        algorithm = self.algorithm
        if alone and isinstance(source, Keyed) and isinstance(algorithm, PushSum) and suits(algorithm, graph, x):
            return OnDevice(algorithm, graph, source, x, self._announce)
        return algorithm.step

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM end the run after the step in hand; a second one ends it at once."""

        def stop(number: int, _frame: object) -> None:
            self._stop = True
            signal.signal(number, previous[signal.Signals(number)])

        try:
            previous = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: the caller looks after signals
            previous = {}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _debiased(x: Tensor, w: Tensor) -> State:
    return State(x, w, x / w.to(x.dtype)[:, None])


def _made_up(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return a few samples of the right shape and range that are nobody's, for the probe."""
    rng = np.random.Generator(np.random.Philox(0))
    x = torch.from_numpy(rng.standard_normal((4, *inputs.shape[2:]))).to(inputs.device, inputs.dtype)
    shape = (4, *targets.shape[2:])
    y = rng.standard_normal(shape) if targets.is_floating_point() else np.arange(np.prod(shape)).reshape(shape) % 2
    return x, torch.from_numpy(y).to(targets.device, targets.dtype)


def _spread(accuracies: list[float]) -> dict[str, float]:
    if not accuracies:
        return {}
    return {"mean_node_accuracy": float(np.mean(accuracies)), "worst_node_accuracy": min(accuracies)}


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
