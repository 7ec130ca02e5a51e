"""How much code one step runs: a reader who follows it must read so many functions in so many files, and no more."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
import torch

import privsgp
import runs
from privsgp.engine.drive import drive
from privsgp.engine.folder import Folder
from privsgp.engine.trainer import Trainer
from privsgp.runs import build
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs.resolve import resolve

PACKAGE = str(Path(privsgp.__file__).parent)
BOUNDS = {"privsgp": (88, 20), "privsgp-vr": (110, 22)}  # functions, files


def traced(work) -> set[tuple[str, str]]:
    """Return the package's functions, as (file, name), that some work calls in this thread."""
    seen = set()

    def note(frame, event, _argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            seen.add((code.co_filename.removeprefix(PACKAGE), code.co_qualname))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.usefixtures("entered")
@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize(("method", "most"), BOUNDS.items())
@pytest.mark.usefixtures("entered")
def test_a_step_of_four_nodes_is_short(tmp_path, seeded, method, most):
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # so that all of it runs in this thread
    try:
        values = tomllib.loads(runs.SMALL) | {"model": {"name": "mlp"}}
        values["algorithm"] = {"name": method, "steps": 9, "step_size": 0.5}
        if not seeded:
            del values["seed"]
        config = configs.parse(values)
        folder = Folder(tmp_path)
        folder.prepare()
        folder.identify({})
        run = Trainer(build.build_run(resolve(config, problems.load_problem(config))), folder)
        run._begin()
        with run.budget_guard:

            def step(k: int) -> None:
                assert run.budget_guard.reserve(k)
                run.state = drive(run.step(k, run.state), k, run.driver)

            for k in range(5):
                step(k)
            found = traced(lambda: step(5))
    finally:
        torch.set_num_threads(before)
    files = {file for file, _ in found}
    assert len(found) <= most[0], "\n".join(f"{file} {name}" for file, name in sorted(found))
    assert len(files) <= most[1], sorted(files)
