"""The folder that a data-protection officer files: a record for the OpenDP registry, and an annex for the assessment.

Everything that privsgp can know comes from the agreement, the checked ledgers, the report and the budget book.
Questions that only people can answer stay open, and the annex lists them.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from privsgp import __version__
from privsgp.accounting import policy as policies
from privsgp.accounting.book import Book, DataSet
from privsgp.accounting.shown import bound, percent_up, small, up
from privsgp.engine.folder import Folder
from privsgp.errors import Refused, visible
from privsgp.files import loaded, read_bytes, write
from privsgp.report import page
from privsgp.runs import config as configs
from privsgp.runs import evaluation, views
from privsgp.runs.card import TEXTS
from privsgp.runs.views import RunView, Site
from privsgp.sites import signed as signatures
from privsgp.sites.continuing import counted_lines, revoked_cards
from privsgp.sites.study import Study

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privsgp.runs.config import Config

REGISTRY, ANNEX = "registry.yaml", "assessment.md"
OPEN = "OPEN:"
_LONGEST = 2**24
_TEXTS = TEXTS.overlay()
_TEXTS.filters = TEXTS.filters | {
    "bound": bound, "small": small, "zip": zip, "number": lambda value: f"{Decimal(up(value)):f}",
    "text": lambda value: json.dumps(str(value), ensure_ascii=False),
}  # fmt: skip
_YAML = _TEXTS.overlay(finalize=lambda value: visible(str(value)))  # of strings of json.dumps


@dataclass(frozen=True)
class _Facts:
    """What is known of a study before its run, or of a finished run."""

    name: str
    date: str
    config: Config
    sites: Sequence[Site]
    records: Sequence[int]
    release: str
    view: RunView | None = None
    agreement: str = ""
    evaluations: Sequence[dict[str, Any]] = ()
    spending: Sequence[DataSet] = ()
    study: Study | None = None
    departed: Sequence[str] = ()

    @property
    def own(self) -> dict[str, Any]:
        """Return this organisation's part of the summary of a run between sites; empty for other runs."""
        found: dict[str, Any] = (self.view.summary.get("site") if self.view else None) or {}
        return found

    @property
    def simulation(self) -> bool:
        """Whether the configuration or a ledger says that the noise came from a seed."""
        told = self.config.seed is not None
        return told or (self.view is not None and bool(self.view.summary["simulation"]))

    @property
    def unit(self) -> str:
        """What ε protects."""
        d = self.config.data
        return "one record" if d.person is None else f"one person, up to {d.rows_per_person} rows"

    @property
    def worst(self) -> Site:
        """The site with the largest ε."""
        return max(self.sites, key=lambda site: (site.epsilon, site.delta))


def write_dossier(source: Path, out: Path, audit: Path | None = None) -> list[str]:
    """Write the dossier of a run's folder or of a study file; return the questions that stay open.

    Guarantee: as `views.read`. Spending from one site's budget book is in the annex, so it stays at that site.
    """
    facts = _of_study(Study.read(source)) if source.is_file() else _of_run(source)
    c = facts.config
    if facts.simulation or not c.private:
        what = "has a seed: it protects nobody" if facts.simulation else "adds no noise"
        raise Refused(f"{source} {what}", "write dossiers of private runs")
    if not math.isfinite(facts.worst.epsilon):
        raise Refused(f"{source} has no finite ε", "set privacy.epsilon: an officer can judge a bound, not a noise")
    if out.exists() and any(out.iterdir()):
        raise Refused(f"{out} is not empty", "name a new folder with {out}", out=None)
    attacked = None if audit is None else _audit(audit, c)
    values = {
        "facts": facts, "c": c, "s": c.study, "site": facts.worst, "version": __version__, "audit": attacked,
        "text": _TEXTS.filters["text"], "bound": bound, "up": up, "small": small,
        "percent_up": percent_up, "policy": policies.read(policies.default_home() / "policy.toml"), "open": OPEN,
        "rows_of": evaluation.rows_of, "statement": evaluation.statement,
        "revoked": [] if facts.study is None else revoked_cards(facts.study),
        "before": [] if facts.study is None else counted_lines(facts.study),
    }  # fmt: skip
    annex = _TEXTS.get_template(ANNEX).render(values)
    out.mkdir(parents=True, exist_ok=True)
    write(out / REGISTRY, _YAML.get_template(REGISTRY).render(values))
    write(out / ANNEX, annex)
    if facts.view is None:
        shutil.copyfile(source, out / source.name)
    else:
        page.write(source, out / page.NAME)
        for path in (source / "agreement.study", source / "signatures.json", source / "model-card.md"):
            if path.exists():
                shutil.copyfile(path, out / path.name)
    return [line.partition(OPEN)[2].strip(" |") for line in annex.splitlines() if OPEN in line]


def _of_study(study: Study) -> _Facts:
    config, agreement = configs.parse(study.settings), f"agreement {study.run}, proposed {study.created}"
    date, sites = study.created[:10], _agreed(study)
    return _Facts(study.name, date, config, sites, study.samples, study.release, agreement=agreement, study=study)


def _agreed(study: Study) -> list[Site]:
    each = zip(study.roster, study.epsilon, study.delta, strict=True)
    return [Site(card.name, math.inf if epsilon is None else epsilon, delta) for card, epsilon, delta in each]


def _of_run(source: Path) -> _Facts:
    view, signed, run = views.read(source), signatures.read(source), Folder(source).run or ""
    if view.config is None or not view.sites:
        raise Refused(f"{source} has no ledger", "name the folder of a private run")
    sets = [one for one in Book().data_sets() if one.records and run in {entry.run for entry in one.entries}]
    spent = {site.name: site for site in view.sites}
    sites = view.sites if signed is None else [spent.get(site.name, site) for site in _agreed(signed.study)]
    return _Facts(
        view.summary["name"], view.identity.get("started", "")[:10], view.config, sites,
        view.summary["samples"] if signed is None else signed.study.samples,
        view.identity.get("versions", {}).get("privsgp", "unknown"), view, "" if signed is None else signed.text,
        evaluation.of_folder(source), sets, None if signed is None else signed.study,
        [card.name for card, gone in zip(signed.study.roster, signed.has_left, strict=True) if gone] if signed else [],
    )  # fmt: skip


def _audit(path: Path, config: Config) -> dict[str, Any]:
    """Return what `privsgp audit run.toml --json` found."""
    found = loaded(read_bytes(path, _LONGEST), str(path))
    if not isinstance(found, dict) or found.get("format") != "privsgp-audit":
        raise Refused(f"{path} is no result of an audit", "write one: privsgp audit run.toml --json > audit.json")
    if (found["algorithm"], found["steps"]) != (config.algorithm.name, config.algorithm.steps):
        has = f"{found['algorithm']} with {found['steps']} steps"
        asked = f"{config.algorithm.name} with {config.algorithm.steps}"
        raise Refused(f"{path} is of {has}, and the study is of {asked}", "audit the study's own run.toml")
    return found
