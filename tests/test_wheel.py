"""The life of the package outside its checkout: built, installed beside what is there already, and used."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

import numpy as np
import pytest

from privsgp import __version__

ROOT = pathlib.Path(__file__).parent.parent
KEPT = {
    "py.typed",
    "report/page.css",
    "report/templates/agreement.txt",
    "report/templates/assessment.md",
    "report/templates/audit.txt",
    "report/templates/base.html",
    "report/templates/charts.html",
    "report/templates/description.html",
    "report/templates/description.txt",
    "report/templates/evaluation.txt",
    "report/templates/failing.txt",
    "report/templates/model-card.md",
    "report/templates/not-covered.txt",
    "report/templates/notebook.html",
    "report/templates/page.html",
    "report/templates/plan.txt",
    "report/templates/privacy.txt",
    "report/templates/registry.yaml",
    "report/templates/release.txt",
    "report/templates/run.txt",
    "report/templates/site.html",
    "report/templates/status.txt",
    "runs/first.toml",
}
OWN = """
name = "own"
[data]
path = "site-{node}.npz"
nodes = 2
classes = 2
[model]
name = "logistic"
[privacy]
epsilon = 3.0
[algorithm]
name = "privsgp"
batch = 10
steps = 4
step_size = 0.5
"""


def _run(*command, **where):
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **where)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the sdist of the checkout, and the wheel of the sdist."""
    place = tmp_path_factory.mktemp("built")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", place, cwd=ROOT)
    with tarfile.open(place / f"privsgp-{__version__}.tar.gz") as packed:
        packed.extractall(place, filter="data")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place, cwd=place / f"privsgp-{__version__}")
    return place / f"privsgp-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """A new environment with the wheel; what it depends on is lent by this one, and not fetched again."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place / "venv", symlinks=True)
    python = place / "venv" / "bin" / "python"
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    here = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    lent.add(str(ROOT / "packages" / "research"))  # its entry points are lent, and its editable install is a .pth
    pathlib.Path(here, "lent.pth").write_text(
        "".join(f"{path}\n" for path in lent)
    )  # behind its own, and no .pth of theirs
    return place


@pytest.fixture(scope="module")
def privsgp(bare):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PRIVSGP_D", "PYTEST"))}
    own = kept | {"PRIVSGP_STATE": str(bare / "state"), "OMP_NUM_THREADS": "1"}
    return lambda *words: _run(bare / "venv" / "bin" / "privsgp", *words, cwd=bare, env=own)


def test_the_wheel_has_what_the_package_reads_and_nothing_else(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert {f"privsgp/{name}" for name in KEPT} | package == {n for n in inside if n.startswith("privsgp/")}
    assert f"privsgp-{__version__}.dist-info/licenses/LICENSE" in inside


def test_the_wheel_is_small_for_the_weights_of_encoders_are_apart(wheel):
    assert wheel.stat().st_size < 2 * 2**20


def test_a_release_has_a_bill_of_materials_and_its_provenance(tmp_path):
    _run(sys.executable, ROOT / ".ci" / "release.py", tmp_path)
    bill = json.loads((tmp_path / f"privsgp-{__version__}.cdx.json").read_text())
    made = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.glob("*.whl")}
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["hashes"][0]["content"] in made.values()
    parts = {one["name"].lower(): one for one in bill["components"]}
    assert {"torch", "dp-accounting", "cryptography", "grpcio"} <= set(parts)
    assert parts["numpy"]["purl"] == f"pkg:pypi/numpy@{np.__version__}"
    assert all(one["licenses"][0]["license"]["name"] for one in parts.values())
    assert set(bill["dependencies"][0]["dependsOn"]) == {one["purl"] for one in parts.values()}
    told = json.loads((tmp_path / f"privsgp-{__version__}.provenance.json").read_text())
    subjects = {one["name"]: one["digest"]["sha256"] for one in told["subject"]}
    assert len(made) == 2
    assert made.items() <= subjects.items()
    commit = _run("git", "rev-parse", "HEAD", cwd=ROOT).strip()
    assert told["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"] == {"gitCommit": commit}


def test_it_says_its_version_and_completes(bare, privsgp):
    assert privsgp("--version") == f"privsgp {__version__}\n"
    where = _run(bare / "venv/bin/python", "-I", "-c", "import privsgp; print(privsgp.__file__)", cwd=bare)
    assert str(bare) in where
    shown = _run(
        "bash", "-c", f"{bare}/venv/bin/privsgp --show-completion; true", cwd=bare
    )  # it looks at who called it
    assert "_PRIVSGP_COMPLETE" in shown


def test_the_demo_runs_and_leaves_its_report(bare, privsgp):
    shutil.copy(ROOT / "examples" / "digits.toml", bare)
    privsgp("train", "digits.toml", "--set", "algorithm.steps=3", "--out", "runs/demo")
    assert "<svg" in (bare / "runs" / "demo" / "report.html").read_text()


def test_own_data_are_trained_on_and_predicted(bare, privsgp):
    draw = np.random.default_rng(0)
    for node in range(2):
        np.savez(bare / f"site-{node}.npz", x=draw.normal(size=(60, 5)).astype("f4"), y=draw.integers(0, 2, 60))
    np.savez(bare / "new.npz", x=np.zeros((3, 5), np.float32))
    (bare / "own.toml").write_text(OWN)
    privsgp("train", "own.toml", "--out", "runs/own")
    privsgp("report", "runs/own")
    assert len(privsgp("predict", "runs/own", "new.npz").splitlines()) == 4
