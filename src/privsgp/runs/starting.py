"""A run that starts from an earlier run's model, and what that costs.

The earlier model is a release about the records it was made of. A run on the same records that starts from it composes
with it, so both must be paid for by one budget: `--ledger`. A run on other records does not: to them the model is a
constant, and to the earlier records the new run is post-processing (privacy.md, "Starting from an earlier model").
"""

from __future__ import annotations

import copy
import hashlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from safetensors.torch import load_file

from privsgp.data.loading import is_file
from privsgp.engine.folder import Folder
from privsgp.engine.formats import Summary
from privsgp.errors import Refused
from privsgp.files import read_json
from privsgp.gradients import Layout
from privsgp.runs import config as configs
from privsgp.runs.result import best_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import nn

    from privsgp.accounting.ledger import Segment
    from privsgp.runs.config import Config
    from privsgp.runs.problem import Problem

Records = Literal["these", "others", "public"]  # of the run that is started from: those of this run, or not
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """The run whose model another starts from; `records` says what it was made of, as far as that is known."""

    folder: Path
    run: str
    config: Config
    ledgers: Path
    records: Records = "these"
    named: bool = True  # else the model that is given has its weights already

    @classmethod
    def of(cls, path: Path, records: str = "these") -> Start:
        """Read what an earlier run was."""
        folder, known = Folder(path), get_args(Records)
        if records not in known:
            raise Refused("{start_records}", f"take one of {', '.join(known)}", start_records=records)
        if not folder.summary.exists():
            raise Refused("{start}: no finished run is there", "name the folder of a finished run", start=path)
        config = configs.started(folder.config)
        return cls(path, folder.run or "", config, ledger_folder(path), cast("Records", records))

    def put_into(self, problem: Problem) -> Problem:
        """Return the problem with the earlier model's weights as x⁰."""
        model, folder = copy.deepcopy(problem.model), Folder(self.folder)
        tensors, own = load_file(best_model(folder, read_json(folder.summary, Summary))), Layout.of(model)
        if {name: t.shape for name, t in tensors.items()} != dict(zip(own.names, own.shapes, strict=True)):
            what, remedy = "{start}: its model has other weights", "take the same [model], [features] and data shapes"
            raise Refused(what, remedy, start=self.folder)
        model.load_state_dict(tensors, strict=False)
        return replace(problem, model=model)

    def counted(self, ledgers: Path | None) -> bool:
        """Tell whether a run that continues these ledgers pays for this one too."""
        return ledgers is not None and ledgers.resolve() == self.ledgers.resolve()


def ledger_folder(path: Path) -> Path:
    """Return where the ledgers of a run lie: `path` may be the run folder, or the ledger folder itself."""
    if not (path / "run.json").exists():
        return path
    return Folder(path).ledgers or path / "ledger"


def refuse_uncounted(start: Start | None, config: Config, ledgers: Path | None) -> None:
    """Refuse a private run that starts from what its own records have paid for, unless one budget counts both.

    Guarantee: unless the earlier model's ledgers are continued, or somebody said that its records are others or public,
    nothing is started from; and never from a model that protects nobody, unless its records are public.
    Assumes: who says "others" or "public" is right; data that are visibly the same are refused all the same.
    """
    if start is None or not config.secret or start.counted(ledgers):
        return
    given, before = {"start": start.folder, "ledger": start.folder}, start.config
    data, earlier = (d.path or (d.name if d.published or is_file(d.name) else None) for d in (config.data, before.data))
    if start.records == "these" or (data is not None and data == earlier):
        raise Refused(
            "{start} without its ledger: to its records that model is a release, and what both runs spend must add up",
            "add {ledger}: one budget then pays for both; if its records are others, say {start_records} (or public)",
            **given,
            start_records="others",
        )
    if start.records == "others" and not before.secret:
        why = "is a simulation" if before.seed is not None else "added no noise"
        raise Refused(
            f"{{start}}, which {why}: its model protects nobody, and every site sends what it starts from",
            "start from a private run; if its records are public, say {start_records}",
            **given,
            start_records="public",
        )
    said = "public" if start.records == "public" else "others than these, and its budget is not counted here"
    _LOG.warning("starts from %s, whose records are said to be %s", start.folder, said)


def refuse_other_ledgers(
    start: Start | None, config: Config, ledgers: Path | None, earlier: Sequence[Sequence[Segment]]
) -> None:
    """Refuse ledgers in the started run's folder that are another's: what its model cost is not in them.

    `earlier` are those of the nodes here.
    """
    if start is None or not config.secret or not start.counted(ledgers):
        return
    for segments in earlier:
        if segments and start.run not in [segment.header.run for segment in segments]:
            raise Refused(
                f"the ledger of node {segments[0].header.node} in {start.ledgers} knows nothing of the run in "
                f"{start.folder}",
                "put the ledgers back that the run wrote: what its model cost must be counted",
            )


def told(start: Start | None, ledgers: Path | None) -> dict[str, Any] | None:
    """Return what a summary says of where a run started."""
    return None if start is None else {"run": start.run, "counted": start.counted(ledgers)}


def digest(model: nn.Module) -> str:
    """Return the SHA-256 of x⁰: a resumed run, and every site of one, must start from the same."""
    x0 = Layout.of(model).flatten(model)
    return hashlib.sha256(x0.cpu().numpy().tobytes()).hexdigest()
