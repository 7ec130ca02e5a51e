"""Who agreed, on the page and in words: every signature is checked again, and what a file says is escaped."""

from __future__ import annotations

import json

import pytest

from privsgp.errors import Refused
from privsgp.report import page
from privsgp.runs.summary import SUMMARY_VERSION
from privsgp.sites import signed
from privsgp.sites.canonical import canonical, digest
from privsgp.sites.protocol.gossip import Goodbye


@pytest.fixture
def folder(three, tmp_path):
    """A folder as a site leaves it, of a run without noise; cork's signature is another's."""
    c = three
    c.agreement.write(tmp_path / "agreement.study")
    (tmp_path / "config.toml").write_text(
        c.agreement.config.toml().replace('name = "privsgp"', 'name = "sgp"').replace("sigma = 0.05", "")
    )
    signatures = [c.agreement.sign(c.sites[i]) for i in (0, 1, 1)]
    left = Goodbye.make(c.sites[1], c.agreement.run, {0: 3}).model_dump()
    sites = [
        {"name": card.name, "identity": card.identity, "signature": one, "left": left if i == 1 else None}
        for i, (card, one) in enumerate(zip(c.agreement.roster, signatures, strict=True))
    ]
    (tmp_path / "signatures.json").write_text(json.dumps({"run": c.agreement.run, "sites": sites}))
    return tmp_path


def test_every_signature_is_checked(three, folder):
    told = signed.read(folder)
    assert told.study.run == three.agreement.run
    assert told.signed == [True, True, False]
    assert told.has_left == [False, True, False]
    assert told.text.endswith("; no right signature of cork")
    assert three.sites[0].card.fingerprint in told.text
    (folder / "signatures.json").unlink()
    assert "signed by nobody" in signed.read(folder).text


def test_an_agreement_of_an_older_release_is_what_was_signed(three, folder):
    """It has no keys that came later: their defaults are not part of its hash."""
    values = json.loads((folder / "agreement.study").read_bytes()) | {"release": "1.0.0rc1"}
    del values["limits"]["max_update"]
    (folder / "agreement.study").write_bytes(canonical(values))
    sites = json.loads((folder / "signatures.json").read_text())
    for site, own in zip(sites["sites"], three.sites, strict=True):
        site["signature"] = own.sign(b"agreement", digest(values).encode()).hex()
    (folder / "signatures.json").write_text(json.dumps(sites))
    assert signed.read(folder).study.run == digest(values)
    assert signed.read(folder).signed == [True, True, True]


def test_another_agreement_has_no_signatures(three, folder):
    values = json.loads((folder / "agreement.study").read_bytes())
    values["samples"][0] += 1
    (folder / "agreement.study").write_text(json.dumps(values))
    assert not any(signed.read(folder).signed)
    values["samples"].pop()
    (folder / "agreement.study").write_text(json.dumps(values))
    with pytest.raises(Refused, match="one J"):
        signed.read(folder)


def test_the_page_names_who_agreed_and_who_was_heard_of(three, folder):
    roster = [{"name": "x", "fingerprint": "x", "newest": step} for step in (None, 21, None)]
    summary = {
        "version": SUMMARY_VERSION, "name": "study", "simulation": False, "algorithm": "sgp", "trust": "per-node",
        "graph": "complete", "nodes": 3, "steps": 20, "dim": 650, "sigma": [0.0], "relation": "zero-out",
        "virtual_seconds": 1.0, "bytes_sent": 81_012, "seconds": 2.0,
        "site": {"name": "<script>alert(1)</script>", "node": 0, "roster": roster},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    page.write(folder, folder / "report.html")
    text = (folder / "report.html").read_text()
    for said in (three.agreement.run, *(card.fingerprint for card in three.agreement.roster), "missing or invalid",
                 "step 21; left for good", "81 kB by this site"):  # fmt: skip
        assert said in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_a_run_in_one_process_has_no_agreement(tmp_path):
    assert signed.read(tmp_path) is None
