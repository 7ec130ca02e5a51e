"""Hypothesis without deadlines: a busy machine is no reason for a law to fail. No test touches the user's home.

And an end for what might have none.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import signal
import tomllib

import pytest
from hypothesis import settings

import privsgp.sites.net.tls  # noqa: F401 - before anything else imports grpc

settings.register_profile("no deadline", deadline=None, max_examples=50)  # each time others
settings.load_profile("no deadline")


# Tests that start processes, open sockets or wait; and tests of pages and results. All others are `unit`.
TIERS = {
    "process": (
        "distributed/", "sites/", "transport/", "engine/test_kills", "engine/test_lost_ledgers", "engine/test_resume",
        "engine/test_asynchronous_resume", "research/test_pool", "test_cli", "test_devices", "test_house",
        "test_install", "test_newcomer", "test_threads", "test_wheel",
    ),
    "pages": (
        "report/", "research/test_claims", "research/test_reproduce", "test_benchmarks", "test_class_weights",
        "test_docs", "test_examples", "test_first_picture", "test_hospitals", "test_links", "test_notebook",
        "test_planner_page",
        "test_planning_page", "test_pythons", "test_record_table", "test_results",
        "test_single_page", "test_soteriafl_page", "test_stragglers_page", "test_texts", "test_trust_page",
        "test_what_it_buys",
    ),
}  # fmt: skip


def pytest_configure():
    """Refuse to test an installation whose entry points are older than pyproject.toml: methods would be missing."""
    project = tomllib.loads((pathlib.Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    wanted = {(group, *entry) for group, found in project["entry-points"].items() for entry in found.items()}
    there = {
        (entry.group, entry.name, entry.value) for entry in importlib.metadata.distribution("privsgp").entry_points
    }
    if wanted - there:
        pytest.exit("pyproject.toml has new entry points: pip install --no-deps --no-build-isolation -e .", 2)


def pytest_collection_modifyitems(items):
    """Give every test its tier: `pytest -m unit` runs in three minutes on two cores."""
    here = pathlib.Path(__file__).parent
    for item in items:
        name = item.path.relative_to(here).as_posix()
        tier = next((tier for tier, starts in TIERS.items() if name.startswith(starts)), "unit")
        item.add_marker(getattr(pytest.mark, tier))


@pytest.fixture
def hurried():
    """End a test that hangs, in a pipe that nobody writes to, say."""

    def late(*_):
        pytest.fail("it never ends")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True, scope="session")
def shared_state(tmp_path_factory):
    """Let no fixture write down in the user's home what its ledgers have spent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVSGP_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    """Let no test know of another's runs."""
    monkeypatch.setenv("PRIVSGP_STATE", str(tmp_path / "state"))


@pytest.fixture
def experiment(request, monkeypatch):
    """Return the script of experiments/ that a test module is about: its EXPERIMENT."""
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent.parent / "experiments")
    return importlib.import_module(request.module.EXPERIMENT)


@pytest.fixture
def entered(monkeypatch):
    """Enter the nodes of each private run in the budget book, as `train` does, where a test makes the run itself."""
    from privsgp.accounting.book import Book, Entry
    from privsgp.engine.budget_guard import BudgetGuard

    begin = BudgetGuard.__enter__

    def entering(self):
        run = self.folder.run or ""
        known = {one.node for one in Book().entries() if one.run == run}
        new = [
            Entry(
                run=run, node=node, ledger=run, command="train", name="test", data="test", folder=str(self.folder.path),
                simulation=False, relation="zero-out", trust="per-node", epsilon=None, delta=1e-5,
            )
            for node in self.spec.here if node not in known and not self.spec.simulation
        ]  # fmt: skip
        Book().enter(new, [None] * len(new))
        return begin(self)

    monkeypatch.setattr(BudgetGuard, "__enter__", entering)
