"""The run: K steps of an algorithm on all nodes of this process, with everything that must happen around a step.

`Training.run` is the loop. A step itself, the paper's lines 5 to 14, is `PushSum.step` in algorithms/push_sum.py.
"""

from __future__ import annotations

import copy
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privsgp.algorithms import Block, Drawn, State
from privsgp.engine import checkpoint
from privsgp.engine.evaluate import Evaluator, average, consensus_error
from privsgp.engine.mix import InProcess
from privsgp.engine.payments import Payments
from privsgp.engine.stops import Diverged, Interrupted, ReplayDiffers
from privsgp.errors import Refused
from privsgp.gradient import Layout, stack
from privsgp.privacy.noise import Keyed, Secure, add_noise_
from privsgp.privacy.sampling import batches, capacity, draw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from privsgp.engine.folder import Folder
    from privsgp.engine.job import Job

    Watcher = Callable[[int, dict[str, Any] | None], None]


@dataclass
class Outcome:
    """What a run ends with."""

    state: State
    average: Tensor
    metrics: list[dict[str, Any]]
    steps: int
    seconds: float
    bytes_sent: int
    releases: list[int]


class Training:
    """One run of a job in a folder."""

    def __init__(self, job: Job, folder: Folder, watch: Watcher | None = None) -> None:
        self.job, self.folder = job, folder
        self.watch = watch or (lambda _step, _row: None)
        self.source = Secure() if job.seed is None else Keyed(job.seed)
        self.attempt = 0
        self.bytes_sent = 0
        self.layout = Layout.of(job.learning.model)
        self.model = copy.deepcopy(job.learning.model).to(job.device, job.dtype)
        x0 = self.layout.flatten(self.model)
        self.state = State.start(x0, job.nodes)
        self.transport = InProcess(job.graph, self.state.x)
        self.payments = Payments(job, folder)
        self.algorithm = job.algorithm(self._block(), job.settings)
        self.evaluator = Evaluator(self.model, self.layout)
        self._stop = False

    def run(self) -> Outcome:
        """Take the steps that are still to be taken, and return what came out."""
        job, started = self.job, time.perf_counter()
        k, spent = self._begin()
        rows = self.folder.start_metrics(simulation=job.simulation, up_to=k)
        with self._interruptible(), self.payments:
            self.attempt = max(self.attempt, self.payments.attempt(k))
            while k < job.steps and self.payments.granted(k, self.attempt):
                try:
                    self.state = self.algorithm.step(k, self.state)
                except ReplayDiffers:
                    k, _ = self._begin(fresh_noise=True)
                    rows = self.folder.start_metrics(simulation=job.simulation, up_to=k)
                    self.payments.rewind()
                    continue
                k += 1
                seconds = spent + time.perf_counter() - started
                if k % job.evaluate_every == 0 or k == job.steps:
                    rows = [row for row in rows if row["step"] < k] + [self._evaluate(k, seconds)]
                stop = self._stop and k < job.steps  # asked once: a signal may come at any moment
                if k % job.checkpoint_every == 0 or k == job.steps or stop:
                    self._checkpoint(k, seconds)
                self.watch(k, rows[-1] if rows else None)
                if stop:
                    raise Interrupted(k)
            if k < job.steps:
                self._checkpoint(k, spent + time.perf_counter() - started)
        seconds = spent + time.perf_counter() - started
        if not rows or rows[-1]["step"] != k:
            rows.append(self._evaluate(k, seconds))
        return Outcome(self.state, average(self.state), rows, k, seconds, self.bytes_sent, self.payments.releases())

    def _begin(self, *, fresh_noise: bool = False) -> tuple[int, float]:
        """Return (steps done, seconds spent): from the last checkpoint, or from x⁰."""
        job, path = self.job, self.folder.checkpoint
        self.algorithm.begin(State.start(self.layout.flatten(self.model), job.nodes).z)
        if not path.exists():
            self.state = State.start(self.layout.flatten(self.model), job.nodes)
            done, spent, attempt = 0, 0.0, 0
            self.bytes_sent = 0
        else:
            progress = checkpoint.read_progress(path)
            if progress.shared != job.shared_hash:
                raise Refused(f"{path} belongs to another configuration", "resume with the configuration that wrote it")
            self.state = checkpoint.load_into(path, self.state, self.algorithm.arrays())
            done, spent, self.bytes_sent, attempt = (
                progress.step,
                progress.seconds,
                progress.bytes_sent,
                progress.attempt,
            )
        # Noise that may have been sent is never used again with other inputs: a replay that differs starts afresh.
        self.attempt = max(attempt, self.attempt + 1 if fresh_noise else self.attempt)
        return done, spent

    def _checkpoint(self, k: int, seconds: float) -> None:
        finite = self.state.x.isfinite().all(1)
        if not bool(finite.all()):
            raise Diverged(k, f"the message of node {int(finite.logical_not().nonzero()[0])}")
        progress = checkpoint.Progress(k, self.attempt, seconds, self.bytes_sent, self.job.shared_hash)
        checkpoint.save(self.folder.checkpoint, progress, self.state, self.algorithm.arrays())

    def _evaluate(self, k: int, seconds: float) -> dict[str, Any]:
        """Measure on public test data; on training data only in simulation."""
        job, mean = self.job, average(self.state)
        row: dict[str, Any] = {"step": k, "seconds": round(seconds, 3)}
        row["consensus_error"] = _number(consensus_error(self.state))
        if job.learning.test is not None:
            test = job.learning.test
            row["test_loss"] = _number(self.evaluator.mean(job.learning.loss, mean, *test))
            if job.learning.correct is not None:
                row["test_accuracy"] = self.evaluator.mean(job.learning.correct, mean, *test)
                nodes = [self.evaluator.mean(job.learning.correct, z, *test) for z in self.state.z]
                row["mean_node_accuracy"], row["worst_node_accuracy"] = float(np.mean(nodes)), min(nodes)
        if job.simulation:
            row["train_loss"] = _number(self._train_loss(mean))
        self.folder.append_metrics(row)
        if not job.algorithm.private and row.get("test_loss", 0.0) is None:
            raise Diverged(k, "the test loss")  # gradients that overflow count as 0: the messages may stay finite
        return row

    def _train_loss(self, mean: Tensor) -> float:
        """Return f(x̄) = (1/n) Σ_i f_i(x̄)."""
        learning, per_node = self.job.learning, []
        for i, mechanism in enumerate(self.job.protection.mechanisms):
            rows = slice(0, mechanism.samples)
            data = learning.inputs[i, rows], learning.targets[i, rows]
            per_node.append(self.evaluator.mean(learning.loss, mean, *data))
        return float(np.mean(per_node))

    def _block(self) -> Block:
        job, learning = self.job, self.job.learning
        mechanisms = job.protection.mechanisms
        probe = _made_up(learning.inputs, learning.targets)
        return Block(
            mechanisms=mechanisms,
            inputs=learning.inputs,
            targets=learning.targets,
            gradient=stack(self.model, learning.loss, probe, rules=job.rules),
            sample=self._sample,
            noise=self._noise,
            mix=self._mix,
            step_size=job.step_size,
        )

    def _sample(self, k: int) -> list[Drawn]:
        mechanisms = self.job.protection.mechanisms
        draws = [draw(self.source, m, i, k, self.attempt) for i, m in enumerate(mechanisms)]
        size = max(capacity(m) for m in mechanisms)
        passes = batches(draws, size, self.job.learning.inputs.shape[1] - 1)
        return [Drawn(*(torch.from_numpy(a).to(self.job.device) for a in one)) for one in passes]

    def _noise(self, k: int, g: Tensor) -> None:
        sigma = [m.sigma for m in self.job.protection.mechanisms]
        if any(sigma):
            add_noise_(g, self.source, range(self.job.nodes), k, sigma=sigma, attempt=self.attempt)

    def _mix(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        self.payments.sending(k, x)
        self.bytes_sent += self.transport.messages(k) * (x[0].nbytes + w.element_size())
        return self.transport(k, x, w)

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


def _made_up(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return a few samples of the right shape and range that are nobody's, for the probe."""
    rng = np.random.Generator(np.random.Philox(0))
    x = torch.from_numpy(rng.standard_normal((4, *inputs.shape[2:]))).to(inputs.device, inputs.dtype)
    return x, torch.zeros((4, *targets.shape[2:]), dtype=targets.dtype, device=targets.device)


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
