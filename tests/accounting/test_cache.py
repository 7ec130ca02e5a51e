"""A cache saves time and nothing else: whatever happens to its files, results stay the same."""

from __future__ import annotations

import math

import pytest

from privsgp.accounting import cache

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
    assert cache.folder() == tmp_path
    monkeypatch.delenv("PRIVSGP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "privsgp"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / ".cache" / "privsgp"
