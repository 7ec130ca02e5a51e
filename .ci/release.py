"""`make wheel`: the sdist and the wheels in dist/, with a bill of materials and the provenance of each file.

`privsgp-VERSION.cdx.json` is a CycloneDX 1.5 bill: privsgp, and what it needs, in the versions of this installation,
with their licences. `privsgp-VERSION.provenance.json` is an unsigned in-toto statement (SLSA 1.0): the hash of each
file, the commit and the tools that made it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import runpy
import subprocess
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DATA = ROOT / "packages" / "privsgp-encoders"
EXTRAS = ("sites", "tables", "encoders")
LICENCES = runpy.run_path(str(ROOT / ".ci" / "licences.py"))
BUILDER = "https://privsgp.invalid/.ci/release.py"


def main(out: Path) -> None:
    """Build everything into a folder."""
    own = re.search(r'__version__ = "([^"]+)"', (ROOT / "src" / "privsgp" / "__init__.py").read_text())
    assert own is not None  # noqa: S101
    version, commit = own[1], _git("rev-parse", "HEAD")
    time = {"SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct")}
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(out.resolve())]
    subprocess.run(build, cwd=ROOT, check=True, env=os.environ | time)
    subprocess.run([*build, "-t", "wheel"], cwd=DATA, check=True, env=os.environ | time)
    made = sorted(path for path in out.iterdir() if path.suffix in (".whl", ".gz"))
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made}
    _write(out / f"privsgp-{version}.cdx.json", bill(version, hashes))
    _write(out / f"privsgp-{version}.provenance.json", provenance(commit, hashes))


def bill(version: str, hashes: dict[str, str]) -> dict[str, Any]:
    """Return what an installation with the extras brings along, in CycloneDX."""
    names = sorted(LICENCES["needed"]("privsgp", EXTRAS), key=str.lower)
    wheel = next(value for name, value in hashes.items() if name.startswith("privsgp-") and name.endswith(".whl"))
    own = _component("privsgp", version, "Apache-2.0") | {"hashes": [{"alg": "SHA-256", "content": wheel}]}
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, wheel)}",
        "metadata": {"component": own},
        "components": [_component(name, metadata.version(name), LICENCES["licence_of"](name)) for name in names],
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [_purl(name, metadata.version(name)) for name in names]}],
    }  # fmt: skip


def provenance(commit: str, hashes: dict[str, str]) -> dict[str, Any]:
    """Return which commit and which tools made the files, as an in-toto statement."""
    tools = {"python": platform.python_version(), "hatchling": metadata.version("hatchling")}
    changed = bool(_git("status", "--porcelain", "--untracked-files=no"))
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": value}} for name, value in hashes.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILDER, "externalParameters": {"command": "make wheel", "changed": changed},
                "resolvedDependencies": [{"uri": "git", "digest": {"gitCommit": commit}}],
            },
            "runDetails": {"builder": {"id": BUILDER, "version": tools}},
        },
    }  # fmt: skip


def _component(name: str, version: str, licence: str) -> dict[str, Any]:
    purl = _purl(name, version)
    return {
        "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
        "licenses": [{"license": {"name": licence}}],
    }  # fmt: skip


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version}"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S607


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist"))
