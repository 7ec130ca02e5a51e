"""What an installation is told: one version, extras by the command that brings them, the container's steps."""

from __future__ import annotations

import ast
import pathlib
import re
import runpy
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest

from privsgp import __version__

ROOT = pathlib.Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = ("sites", "tables", "encoders")
WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None  # as if it were not installed
from privsgp import cli
cli.main()
"""


def test_the_version_stands_in_one_place():
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/privsgp/__init__.py"
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()  # who cites needs one


def test_one_command_gives_a_release_its_version(tmp_path):
    script = runpy.run_path(str(ROOT / ".ci" / "version.py"))
    for name in script["PLACES"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    if "\n## Unreleased\n" not in (tmp_path / "CHANGELOG.md").read_text():  # right after a release
        (tmp_path / "CHANGELOG.md").write_text("\n## Unreleased\n")
    script["main"]("9.8.7", tmp_path)
    for name in script["PLACES"]:
        assert (tmp_path / name).read_text().count("9.8.7") == 1
    with pytest.raises(SystemExit, match=r"CHANGELOG\.md has 0 lines"):
        script["main"]("9.8.8", tmp_path)
    assert "9.8.8" not in (tmp_path / "CITATION.cff").read_text()
    with pytest.raises(SystemExit, match="is no version"):
        script["main"]("soon", tmp_path)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_exists_and_is_in_the_readme(extra):
    assert extra in PROJECT["project"]["optional-dependencies"]
    assert re.search(rf"^\| `{extra}` \|", (ROOT / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("package", "extra", "command"),
    [
        ("grpc", "sites", ("relay", "lung.study")),
        ("pyarrow", "tables", ("data", "check", str(ROOT / "examples/hospitals/schema.toml"), "site.csv")),
    ],
)
def test_a_missing_extra_is_refused_with_the_command_that_brings_it(package, extra, command, tmp_path):
    """Those of `encoders` are beside the tests of what needs them."""
    (tmp_path / "site.csv").write_text("y\n0\n")
    (tmp_path / "lung.study").touch()
    command = [sys.executable, "-c", WITHOUT, package, *command]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 2, ran.stderr
    assert f"pip install 'privsgp[{extra}]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_container_takes_the_steps_of_the_readme():
    steps = re.findall(r"^pip (install --constraint .*?)(?: +#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE)
    file = (ROOT / "deploy" / "Containerfile").read_text()
    values = dict(re.findall(r"^ARG (\w+)=(\S+)", file, re.MULTILINE))
    said = re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found[1], ""), file)
    assert len(steps) == 2
    for step in steps:
        assert f"RUN pip {step}\n".replace("'", '"') in said
    assert said.index("RUN pip") < said.index("USER privsgp")
    copied = {word for line in re.findall(r"^COPY (.*) \S+$", file, re.MULTILINE) for word in line.split()}
    assert copied == set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE))


def test_licences_that_were_not_looked_at_are_named():
    licences = runpy.run_path(str(ROOT / ".ci" / "licences.py"))
    asked = {
        re.match(r"[\w.-]+", line)[0].lower().replace("-", "_")
        for line in PROJECT["project"]["optional-dependencies"]["encoders"]
    }
    absent = {name.replace("-", "_") for name in licences["missing"]("privsgp", ("encoders",))}
    assert absent == {name for name in asked if not licences["installed"](name)}
    assert not licences["missing"]("privsgp", ())


@pytest.mark.parametrize(
    ("licence", "free"),
    [
        ("Apache-2.0", True), ("BSD-3-Clause AND MIT", True), ("MPL-2.0 AND MIT", True), ("GPL-3.0 OR MIT", True),
        ("Apache Software License; BSD License", True), ("ISC License (ISCL)", True), ("(MIT OR Apache-2.0)", True),
        ("GPL-3.0-only", False), ("LGPL-2.1 AND MIT", False), ("Commercial: permitted with a key", False),
        ("See disclaimer", False), ("Proprietary, unlimited use", False), ("MIT, no commercial use", False),
        ("unknown", False), ("GNU General Public License v3", False),
    ],
)  # fmt: skip
def test_a_licence_is_permissive_in_all_its_parts(licence, free):
    assert runpy.run_path(str(ROOT / ".ci" / "licences.py"))["permissive"](licence) == free


def imported():
    """Return every package that a line of ours imports, wherever in a file it stands."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "src").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names} - {"privsgp", *sys.stdlib_module_names}


def test_what_is_imported_is_asked_for():
    """The tests of the wheel borrow what is installed here: one that pyproject forgot would not be missed there."""
    extras = [line for extra in EXTRAS for line in PROJECT["project"]["optional-dependencies"][extra]]
    lines = [*PROJECT["project"]["dependencies"], *extras]
    asked = {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in lines}
    brought = metadata.packages_distributions()
    here_or_not = {"IPython", "triton"}  # in a notebook, which has it; with torch's CUDA build, which brings it
    for name in imported() - here_or_not - {"pydantic_core"}:  # which is pydantic's own half
        assert asked & {one.lower().replace("_", "-") for one in brought[name]}, name
