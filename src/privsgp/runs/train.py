"""From a configuration to a finished run folder; the command line and `privsgp.train` are thin over this."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from privsgp import __version__, features
from privsgp.accounting import policy as policies
from privsgp.algorithms import ALGORITHMS
from privsgp.engine.folder import Folder, refuse_used, write_tensors
from privsgp.engine.trainer import Outcome, Trainer
from privsgp.errors import Refused, Stopped
from privsgp.files import finite, write, write_json
from privsgp.gradients import Layout
from privsgp.options import NotNegative
from privsgp.outside import Hash
from privsgp.runs import booked, views
from privsgp.runs import card as cards
from privsgp.runs import config as configs
from privsgp.runs.build import build_run
from privsgp.runs.problem import Problem, weights_digest
from privsgp.runs.resolve import Resolved, resolve
from privsgp.runs.result import Result, load_result
from privsgp.runs.summary import FIRST, measured_by_first, summary
from privsgp.transport.rendezvous import refuse_differences
from privsgp.transport.world import World, blocks, restarts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from privsgp.accounting.book import Records
    from privsgp.engine.spec import RunSpec
    from privsgp.engine.trainer import Watcher
    from privsgp.runs.config import Config


def run(
    config: Config,
    problem: Problem,
    out: Path,
    *,
    resume: bool = False,
    moved: bool = False,
    watch: Watcher | None = None,
    plan: dict[str, Any] | None = None,
    world: World | None = None,
) -> Result:
    """Train, and leave a complete run folder behind. On a finished run `resume` changes nothing.

    `moved` says that the run's folder was taken to another disk or machine, and that no copy of it goes on elsewhere.
    `plan` is kept as plan.json: what `planning.with_choices` chose for "auto", and why.
    `world` are the processes that torchrun started: this call then runs one process's share, and resumes by itself
    after a restart.
    """
    world = world or World()
    with world.leaving(), contextlib.ExitStack() as locks:
        folder, resolved = _resolve(config, problem, out, world, resume=resume)
        around = _circumstances(resolved, world)
        if _is_finished(folder, resolved.config, around, world, resume=resume):
            return load_result(folder, problem.model, problem.encoder, cards.card(resolved.config, problem))
        records = _records(resolved, world)
        spec = build_run(resolved)
        training = Trainer(spec, folder, watch, world)
        world.all_or_none(lambda: locks.enter_context(folder.locked()))
        also = [(booked.HELD_OUT, False, problem.aside)] if problem.aside else []
        sharing = _open(spec, resolved, folder, world, around, records, moved=moved, plan=plan, also=also)
        outcome = _train(training, folder)
        return _finish(spec, folder, outcome, world, sharing, problem.encoder)


def release(
    config: Config, problem: Problem, out: Path, command: str, *,
    also: Sequence[tuple[str, bool, Sequence[Records]]] = (), look: Callable[[RunSpec], None] = lambda _spec: None,
) -> tuple[RunSpec, Outcome]:  # fmt: skip
    """Release a noised sum: a run of one step, in one process; other records may be charged `also`.

    `look` gets the run before anything is released or charged.

    Guarantee: without a seed the release is in the budget book and in durable ledgers before any noise is drawn. If the
    process dies, it counts as spent, and another call is another release.
    """
    world = World()
    with contextlib.ExitStack() as locks:
        folder, resolved = _resolve(config, problem, out, world, resume=False)
        records = _records(resolved, world)
        spec = build_run(resolved)
        look(spec)
        training = Trainer(spec, folder, None, world)
        locks.enter_context(folder.locked())
        if folder.config.exists():
            raise Refused(f"{out} holds a release of another process", "run the command again: it takes another folder")
        around = _circumstances(resolved, world)
        _open(spec, resolved, folder, world, around, records, command=command, also=also)
        return spec, _train(training, folder)


def _resolve(config: Config, problem: Problem, out: Path, world: World, *, resume: bool) -> tuple[Folder, Resolved]:
    """Settle what is open; refuse a process whose configuration, x⁰ or settled numbers differ from another's."""
    problem = problem.local_shard(world)
    folder = Folder(out, "" if problem.block is None else f"-{problem.block.start}-{problem.block.stop - 1}")
    goes_on = (resume or restarts()) and folder.config.exists()
    resolved = world.all_or_none(lambda: resolve(config, problem, configs.started(folder.config) if goes_on else None))
    if not world.alone:  # numbers that were "auto" were not there yet when configurations were compared
        encoder = None if problem.encoder is None else features.digest(problem.encoder)
        weights, algorithm = weights_digest(problem.model), resolved.config.shared()["algorithm"]
        made = {"number of weights": Layout.of(problem.model).dim, "SHA-256 of the first weights": weights}
        made |= {"SHA-256 of the features": encoder} | {f"algorithm.{key}": value for key, value in algorithm.items()}
        refuse_differences(world, made)
    return folder, resolved


def _records(resolved: Resolved, world: World) -> Sequence[Records | None]:
    """Return the records of the nodes here; refuse a person at more of them than is counted."""
    config, problem = resolved.counted, resolved.problem
    records: Sequence[Records | None] = [None] * len(problem.parts)  # which everybody can have
    if not config.data.published:
        records = booked.records_of(problem.hashes, problem.dataset, problem.parts)
    if problem.dataset.persons is not None:
        world.all_or_none(lambda: booked.refuse_everywhere(records, config.privacy.sites_per_person))
    return records


def _open(
    spec: RunSpec, resolved: Resolved, folder: Folder, world: World, around: dict[str, Any],
    records: Sequence[Records | None], *, moved: bool = False,
    plan: dict[str, Any] | None = None, command: str = "train",
    also: Sequence[tuple[str, bool, Sequence[Records]]] = (),
) -> list[int]:  # fmt: skip
    """Give the run its number, its folder and its entry in the budget book, before its first release.

    Returns the processes that share the folder, by what they say.
    """
    number = world.number_run(folder.run or uuid.uuid4().hex)
    machine = Path("/proc/sys/kernel/random/boot_id")
    name = (machine.read_text() if machine.exists() else platform.node()) + str(folder.path.resolve())
    folders = world.all_gather(hashlib.sha256(name.encode()).hexdigest(), Hash)
    sharing = [rank for rank, folder_ in enumerate(folders) if folder_ == folders[world.rank]]
    if sharing[0] == world.rank:
        folder.prepare()
        folder.identify(versions(), number, around)
    world.all_gather(None, None)  # the folder is ready

    def enter() -> None:
        if folder.run != number:
            what = f"{folder.path} belongs to another run than process 0's folder"
            raise Refused(what, "choose another one with {out}", out=None)
        if spec.algorithm.private or not spec.simulation:  # without noise, ε has no bound: the book says so
            data = resolved.counted.data
            made = booked.entries(spec, folder, command, data.path or data.name)
            every = booked.with_others(made, records, also)
            policy = policies.read(policies.default_home() / "policy.toml")
            if policy is not None and not spec.simulation and any(one is not None for one in records):
                honest, weights = resolved.counted.trusted, spec.mechanisms[0].coordinates
                policies.refuse_run(policy, algorithm=spec.algorithm.name, weights=weights, honest=honest)
            booked.enter(*every, resumed=folder.config.exists(), moved=moved, policy=policy)

    world.all_or_none(enter)
    if sharing[0] == world.rank:  # last: from now on there is a run to resume
        write(folder.config, resolved.config.toml())
        if plan is not None:
            write_json(folder.plan, plan)
    return sharing


def _train(training: Trainer, folder: Folder) -> Outcome:
    try:
        return training.run()
    except Stopped as stopped:
        raise stopped.with_checkpoint(kept=folder.checkpoint.exists() or folder.checkpoint_before.exists()) from None
    finally:
        training.close()


def _circumstances(resolved: Resolved, world: World) -> dict[str, Any]:
    """Return what a resumed run must find as it was; refuse several processes for a method of one."""
    algorithm = ALGORITHMS[resolved.config.algorithm.name]
    if not world.alone and (algorithm.asynchronous or algorithm.network in ("server", "alone")):
        what = f"algorithm.name = {algorithm.name!r} with {world.size} processes"
        raise Refused(what, "run it in one process, without torchrun")
    if not world.alone and resolved.config.pairwise and resolved.config.seed is None:
        what = f"privacy.noise = {resolved.config.privacy.noise!r} in {world.size} processes"
        remedy = "take 'independent'; sites that share noise use `privsgp join`, which exchanges signed keys"
        raise Refused(what, remedy)
    return {"processes": world.size}


def versions() -> dict[str, str]:
    """Return what a reader needs to repeat a run."""
    return {"privsgp": __version__, "python": platform.python_version(), "torch": torch.__version__}


def resume_note(out: Path) -> str:
    """Say what there is to resume in a folder."""
    if not Folder(out).config.exists():
        return f"there is no run in {out} to resume: a new one begins"
    if Folder(out).summary.exists():
        return f"the run in {out} is finished: there is nothing to resume"
    return f"the run in {out} goes on"


def _is_finished(folder: Folder, config: Config, around: dict[str, Any], world: World, *, resume: bool) -> bool:
    """Return whether the run is finished in all processes; refuse a folder that belongs to another run."""
    done = world.all_or_none(lambda: _finished_here(folder, config, around, resume=resume))
    return all(world.all_gather(done, bool))


def _finished_here(folder: Folder, config: Config, around: dict[str, Any], *, resume: bool) -> bool:
    folder.refuse_unless_writable()
    refuse_used(folder.path, resume=resume, secret=config.secret, restarted=restarts() > 0)
    if not folder.config.exists():
        return False
    options = {"resume": True, "out": folder.path}
    if folder.run is None and config.secret:
        remedy = "restore the folder as it was when the run stopped, or begin a run in another one"
        raise Refused("{resume} with {out}, which has lost run.json: so its spending is unknown", remedy, **options)
    before = folder.identity.get("circumstances") or around
    keys = [key for key in before | around if before.get(key) != around.get(key)]
    changed = configs.changes(folder.config, config)
    if changed := changed or [f"{key}: {before.get(key)} → {around.get(key)}" for key in keys]:
        remedy = "resume as the run was started, or choose another folder"
        raise Refused(f"{{resume}} with a changed configuration: {'; '.join(changed)}", remedy, **options)
    return folder.summary.exists()


def _finish(
    spec: RunSpec, folder: Folder, outcome: Outcome, world: World, sharing: list[int], encoder: nn.Module | None
) -> Result:
    """Write the nodes' models, the average model where it is known, and a summary in each of the run's folders.

    Guarantee: what a summary says of a process's own nodes is what that process counted by its own ledgers.
    """
    layout = Layout.of(spec.learning.model)
    if outcome.average is not None:
        save_model(folder.model, layout, outcome.average, spec.card)
    for i, z in zip(spec.here, outcome.state.z, strict=True):
        save_model(folder.node(i), layout, z, spec.card)
    p, private = spec.protection, spec.algorithm.private
    own = [finite(p.epsilon(i, outcome.releases[i])) if private else None for i in spec.here]
    spent = world.all_gather_nodes(own, NotNegative | None, spec.nodes)
    mine = measured_by_first(spec, outcome) if world.rank == 0 else None
    first = world.all_gather_each(mine, [FIRST, *[None] * (world.size - 1)])[0]
    here = {i for rank, block in enumerate(blocks(spec.nodes, world.size)) if rank in sharing for i in block}
    found = summary(spec, outcome, spent, first or {}, [i for i in range(spec.nodes) if i not in here])
    if sharing[0] == world.rank:
        write(folder.path / cards.NAME, cards.markdown(dict(spec.card), views.of(found, folder.path)))
        write_json(folder.summary, found)
    world.all_gather(None, None)
    return load_result(folder, spec.learning.model, encoder, dict(spec.card))


def save_model(path: Path, layout: Layout, x: Tensor, card: Mapping[str, Any]) -> None:
    """Write a model's weights, with the card that says what it is."""
    tensors = {name: value.contiguous().cpu() for name, value in layout.views(x).items()}
    write_tensors(path, tensors, cards.metadata(card))
