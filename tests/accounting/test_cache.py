"""A cache saves time and nothing else: whatever happens to its files, results stay the same."""

from __future__ import annotations

import math

import pytest

from privsgp.accounting import accountant, cache
from privsgp.accounting.mechanisms import Saga
from privsgp.files import cache_folder

VALUES = (1.25, math.inf)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVSGP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def wrong():
    raise AssertionError("computed although it was kept")


def test_a_kept_answer_is_exact_and_not_computed_again(folder):
    assert cache.remember("q", lambda: (0.1 + 0.2, *VALUES)) == (0.1 + 0.2, *VALUES)
    assert cache.remember("q", wrong) == (0.1 + 0.2, *VALUES)
    assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_questions_are_told_apart(folder):
    cache.remember("q", lambda: VALUES)
    assert cache.remember("Q", lambda: (7.0,)) == (7.0,)


def test_another_version_of_the_code_computes_again(folder, monkeypatch):
    cache.remember("q", lambda: VALUES)
    monkeypatch.setattr(cache, "version", lambda: "other")
    assert cache.remember("q", lambda: (7.0,)) == (7.0,)


def damage_digit(text):
    return text.replace("0x1.4", "0x1.3")


@pytest.mark.parametrize(
    "damage",
    [damage_digit, lambda _: "", lambda t: t[:30], lambda _: "[]", lambda _: '{"values": [1]}', lambda _: "\0"],
)
def test_a_damaged_file_is_computed_again_and_mended(folder, damage):
    cache.remember("q", lambda: VALUES)
    (path,) = folder.iterdir()
    sound = path.read_text()
    path.write_text(damage(sound))
    assert cache.remember("q", lambda: VALUES) == VALUES
    assert path.read_text() == sound


def test_bytes_that_are_no_text_are_computed_again(folder):
    cache.remember("q", lambda: VALUES)
    (path,) = folder.iterdir()
    path.write_bytes(b"\xff\xfe\xff")
    assert cache.remember("q", lambda: VALUES) == VALUES


def test_a_folder_that_cannot_be_made_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PRIVSGP_CACHE", str(tmp_path / "file" / "cache"))
    assert cache.remember("q", lambda: VALUES) == VALUES


def test_where_results_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("PRIVSGP_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("PRIVSGP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "privsgp"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "privsgp"


LOUD = Saga(sigma=0.004, clip=1.0, batch=5, samples=100)


def plant(monkeypatch, mechanism, steps, value):
    """Write what an attacker with access to the folder would: a well-formed file with a small ε."""
    with monkeypatch.context() as patch:
        patch.setattr(accountant, "_contradiction", lambda *_, **__: "")
        patch.setattr(accountant, "_composed_epsilon", lambda *_: (value, value, 0.0))
        accountant.epsilon(mechanism, steps, 1e-5)


def test_a_planted_epsilon_is_not_believed(folder, monkeypatch):
    plant(monkeypatch, LOUD, 100, 0.1)
    assert list(folder.glob("*.json"))
    assert accountant.epsilon(LOUD, 100, 1e-5).epsilon > 100


@pytest.mark.parametrize("bits", [0o777, 0o775, 0o757])
def test_a_folder_that_others_may_write_to_is_neither_read_nor_written(folder, bits):
    cache.remember("q", lambda: (1.0,))
    folder.chmod(bits)
    assert cache.remember("q", lambda: (2.0,)) == (2.0,)
    assert cache.remember("r", lambda: (3.0,)) == (3.0,)
    folder.chmod(0o700)
    assert cache.remember("q", lambda: (2.0,)) == (1.0,)
    assert cache.remember("r", lambda: (4.0,)) == (4.0,)


def test_a_file_that_others_may_write_to_or_a_link_is_not_read(folder, tmp_path):
    cache.remember("q", lambda: (1.0,))
    (path,) = folder.iterdir()
    path.chmod(0o666)
    assert cache.remember("q", lambda: (2.0,)) == (2.0,)
    path.replace(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    assert cache.remember("q", lambda: (3.0,)) == (3.0,)
    assert not path.is_symlink()


def test_a_linked_folder_of_somebody_else_is_not_used(folder, monkeypatch):
    cache.remember("q", lambda: (1.0,))
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert cache.remember("q", lambda: (2.0,)) == (2.0,)
