"""A run folder as a report sees it: what may be shown of it, its ledgers checked. `private/` is never opened."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from privsgp import metrics
from privsgp.accounting.statements import Statement, statements
from privsgp.engine.folder import Folder, read_metrics
from privsgp.engine.formats import Plan, Summary
from privsgp.errors import Refused
from privsgp.files import read_json
from privsgp.runs import config as configs
from privsgp.transport.lossy import Faults, Leave, Outage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pydantic import BaseModel

    from privsgp.runs.config import Config

CURVES = ("test_accuracy", "mean_node_accuracy", "worst_node_accuracy", "test_loss")  # over the steps
TESTED = (*CURVES, *metrics.KEYS)  # public if test data are
PUBLIC = (*CURVES, "consensus_error")
SIMULATED = ("train_loss",)  # computed from records: privacy.md, Artefacts


@dataclass(frozen=True)
class Run:
    """One run: its configuration, what its folder says of it, and what its ledgers say was spent."""

    path: Path
    config: Config
    identity: dict[str, Any]
    summary: dict[str, Any] | None  # None: not finished
    metrics: list[dict[str, Any]]
    statements: Sequence[Statement]
    plan: dict[str, Any] | None

    @property
    def simulation(self) -> bool:
        """Whether anyone who reads the configuration, or that of a run before it, can recompute the noise."""
        return self.config.seed is not None or any(s.simulation for s in self.statements)

    @property
    def processes(self) -> int:
        """How many it had."""
        return int((self.identity.get("circumstances") or {}).get("processes", 1))

    @property
    def finished(self) -> bool:
        """Whether it came to its end, and its nodes' ledgers were closed."""
        return self.summary is not None and all(s.complete for s in self.statements)

    @property
    def steps(self) -> int:
        """The steps taken, as far as the folder tells."""
        last = self.metrics[-1]["step"] if self.metrics else 0
        return int(last if self.summary is None else self.summary["steps"])

    @property
    def ended(self) -> str | None:
        """Why a run that is over took fewer steps than were planned; None where it took them all."""
        return None if self.summary is None else self.summary.get("ended")

    @property
    def length(self) -> str:
        """How many steps, in words: those that were planned, and of a run that ended early those taken."""
        planned = f"{self.config.algorithm.steps:,} steps"
        return planned if self.ended is None else f"{self.steps:,} of {planned}"

    @cached_property
    def faults(self) -> Faults | None:
        """What went wrong on a simulated network."""
        told = (self.identity.get("circumstances") or {}).get("faults")
        if told is None:
            return None
        crashes, leaves = tuple(Outage(*c) for c in told["crashes"]), tuple(Leave(*one) for one in told["leaves"])
        if away := [node for node, *_ in (*crashes, *leaves) if node >= self.config.data.nodes]:
            raise Refused(
                f"{self.path / 'run.json'}: a fault of node {away[0]} of {self.config.data.nodes}",
                "it is damaged, or of another run: restore it from a copy",
            )
        return Faults(**told | {"crashes": crashes, "leaves": leaves})

    def column(self, name: str) -> list[tuple[int, float]]:
        """Return (step, value) of every evaluation that has the metric."""
        return [(row["step"], row[name]) for row in self.metrics if row.get(name) is not None]


def read(path: Path) -> Run:
    """Read a run folder.

    Guarantee: of a run without a seed nothing is kept that depends on the nodes' records except through their noised
    messages: metrics by a list of names, plans only if they were made on public or made-up data.
    Metrics on test data are kept where those are public, `data.test`.
    """
    folder = Folder(path)
    if not folder.config.exists():
        raise Refused(f"{path} is no run folder: it has no config.toml", "name a folder that `privsgp train` wrote")
    config = configs.started(folder.config)
    kept_back = () if config.test_is_public else TESTED  # older releases wrote them all the same
    summary = _json(folder.summary, Summary)
    rows = shown(read_metrics(folder.metrics), simulation=config.seed is not None)
    plan = _json(folder.plan, Plan)
    if plan is not None and plan["estimated_on"]["kind"] == "private" and config.seed is None:
        plan = None  # it looked at the nodes' own samples: no ε covers what it tells
    return Run(
        path=path,
        config=config,
        identity=folder.identity,
        summary=None if summary is None else summary | dict.fromkeys(kept_back),
        metrics=[{name: value for name, value in row.items() if name not in kept_back} for row in rows],
        statements=statements(folder.ledgers or path) if config.private else (),
        plan=plan,
    )


def shown(rows: Sequence[dict[str, Any]], *, simulation: bool) -> list[dict[str, Any]]:
    """Keep the metrics that may leave the site; those on training data only of a simulation."""
    names = ("step", *PUBLIC, *(SIMULATED if simulation else ()))
    return [{name: row[name] for name in names if name in row} for row in rows]


def _json(path: Path, shape: type[BaseModel]) -> dict[str, Any] | None:
    return read_json(path, shape) if path.exists() else None
