"""Keys stay at home, cards are endorsed, certificates are renewed under the same identity."""

from __future__ import annotations

import json
import stat

import pytest

from privsgp.errors import Refused
from privsgp.sites.canonical import canonical
from privsgp.sites.identity import Card, Site, fingerprint
from runs import command


@pytest.fixture
def site(tmp_path):
    return Site.create(tmp_path / "home", "aachen", address="fl.aachen.example:443")


def test_keys_are_for_their_owner_alone(site):
    assert stat.S_IMODE(site.home.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in site.home.iterdir() if path.name.endswith("key")}
    assert modes == dict.fromkeys(("identity.key", "authority.key", "exchange.key", "tls.key"), 0o600)


@pytest.mark.parametrize("which", [".", "identity.key", "tls.key"])
def test_keys_that_others_can_read_are_refused(site, which):
    (site.home / which).chmod(0o744)
    with pytest.raises(Refused, match="open to others"):
        Site.open(site.home)


def test_no_private_half_is_in_the_card(site):
    card = canonical(site.card.model_dump())
    for file in ("identity.key", "authority.key", "exchange.key", "tls.key"):
        body = (site.home / file).read_text().split("PRIVATE KEY-----")[1]
        assert body[:40].strip().encode() not in card
    assert b"PRIVATE" not in card


@pytest.mark.parametrize("key", ["name", "address", "exchange", "identity", "authority"])
def test_a_card_that_was_changed_is_refused(site, tmp_path, key):
    other = Site.create(tmp_path / "other", "basel", address=None)
    values = site.card.model_dump() | {key: other.card.model_dump()[key]}
    path = tmp_path / "aachen.card"
    path.write_bytes(canonical(values))
    with pytest.raises(Refused, match="not endorsed"):
        Card.read(path)


def test_a_card_comes_back_as_it_was_written(site, tmp_path):
    site.card.write(tmp_path / "a.card")
    assert Card.read(tmp_path / "a.card") == site.card
    assert site.card.fingerprint == fingerprint(bytes.fromhex(site.card.identity))


def test_a_signature_for_one_purpose_is_none_for_another(site):
    signature = site.sign(b"agreement", b"x").hex()
    assert site.card.signed(b"agreement", b"x", signature)
    assert not site.card.signed(b"message", b"x", signature)


def test_a_new_certificate_is_of_the_same_site(site, tmp_path):
    before, card = site.certificate, site.card.model_dump()
    site.rotate()
    assert site.certificate != before
    assert site.card.issued(site.certificate)
    assert Site.open(site.home).card.model_dump() == card
    twin = Site.create(tmp_path / "twin", "aachen", address=None)
    assert not site.card.issued(twin.certificate)


def test_a_home_is_made_once(site):
    with pytest.raises(Refused, match="already"):
        Site.create(site.home, "aachen", address=None)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--name=Aachen", "--outbound-only"], "small letters"),
        (["--name=a", "--address=aachen"], "HOST:PORT"),
        (["--name=a"], "--outbound-only"),
        (["--name=a", "--address=a:1", "--outbound-only"], "--outbound-only"),
        (["--name=a", "--outbound-only", "--proxy=socks://x:1"], "CONNECT"),
    ],
)
def test_init_refuses(tmp_path, monkeypatch, options, why):
    monkeypatch.chdir(tmp_path)
    ran = command("site", "init", "--home", tmp_path / "h", *options)
    assert ran.code == 2
    assert why in ran.err
    assert not (tmp_path / "h" / "identity.key").exists()


def test_the_commands_of_a_site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVSGP_SITE", str(tmp_path / "h"))
    assert "next: send cork.card" in command("site", "init", "--name=cork", "--outbound-only").out
    shown = json.loads(command("site", "show", "--json").out)
    assert shown["name"] == "cork"
    assert json.loads(command("site", "show", "cork.card", "--json").out)["fingerprint"] == shown["fingerprint"]
    (tmp_path / "cork.card").unlink()
    assert "next: send cork.card" in (told := command("site", "card").out)
    assert shown["fingerprint"] in told
    assert (tmp_path / "cork.card").exists()
    assert "good until" in command("site", "rotate").out


def test_a_passphrase_encrypts_every_key(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVSGP_PASSPHRASE", "correct horse")
    made = Site.create(tmp_path / "home", "aachen", address="fl.aachen.example:443")
    for file in ("identity.key", "authority.key", "exchange.key", "tls.key"):
        text = (made.home / file).read_text()
        assert "ENCRYPTED PRIVATE KEY" in text
        assert "BEGIN PRIVATE KEY" not in text
    assert made.sign(b"purpose", b"text")
    assert b"BEGIN PRIVATE KEY" in made.tls()[0]  # in memory, for gRPC
    made.rotate()
    assert "ENCRYPTED" in (made.home / "tls.key").read_text()
    for given, why in (("wrong", "does not open it"), ("", "has 0 bytes"), (None, "identity.key is encrypted")):
        monkeypatch.delenv("PRIVSGP_PASSPHRASE") if given is None else monkeypatch.setenv("PRIVSGP_PASSPHRASE", given)
        with pytest.raises(Refused, match=why):
            Site.open(made.home).sign(b"purpose", b"text")


@pytest.mark.parametrize("given", ["", "x" * 1024])
def test_no_key_is_made_with_a_passphrase_that_was_lost_on_its_way(tmp_path, monkeypatch, given):
    monkeypatch.setenv("PRIVSGP_PASSPHRASE", given)
    with pytest.raises(Refused, match=f"has {len(given)} bytes"):
        Site.create(tmp_path / "home", "aachen", address="fl.aachen.example:443")
    assert not (tmp_path / "home" / "identity.key").exists()


def test_a_key_that_should_be_encrypted_and_is_not_is_refused(site, monkeypatch):
    monkeypatch.setenv("PRIVSGP_PASSPHRASE", "correct horse")
    with pytest.raises(Refused, match="is not encrypted, and PRIVSGP_PASSPHRASE is set"):
        Site.open(site.home).sign(b"purpose", b"text")
