from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from privsgp.data import files
from privsgp.errors import Refused


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def test_idx(tmp_path):
    (tmp_path / "a").write_bytes(idx(IMAGES))
    (tmp_path / "b.gz").write_bytes(gzip.compress(idx(IMAGES)))
    assert np.array_equal(files.read_idx(tmp_path / "a"), IMAGES)
    assert np.array_equal(files.read_idx(tmp_path / "b.gz"), IMAGES)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a", b"", "does not start like"),
        ("a", b"\0\0\x08\x03\0\0", "does not start like"),
        ("a", b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "does not start like"),
        ("a", idx(IMAGES)[:-1], "promises 24 bytes of data, it holds 23"),
        ("a", idx(IMAGES) + b"\0", "promises 24 bytes of data, it holds 25"),
        ("a.gz", idx(IMAGES), "damaged"),
        ("a.gz", gzip.compress(idx(IMAGES), mtime=0)[:-9], "damaged"),
        ("a.gz", gzip.compress(idx(IMAGES), mtime=0)[:20] + b"\xff" * 30, "damaged"),
    ],
    ids=range(8),  # bytes make poor names
)
def test_a_damaged_idx_is_refused(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Refused, match=said):
        files.read_idx(tmp_path / name)


def test_cifar(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CIFAR_RECORDS", 2)
    record = bytes([7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes([3]) * 1024
    (tmp_path / "batch.bin").write_bytes(record + record)
    images, labels = files.read_cifar(tmp_path / "batch.bin")
    assert labels.tolist() == [7, 7]
    assert images.shape == (2, 3, 32, 32)
    assert images[1, :, 31, 31].tolist() == [1, 2, 3]
    (tmp_path / "batch.bin").write_bytes(record)
    with pytest.raises(Refused, match="should hold 6146 bytes, it holds 3073"):
        files.read_cifar(tmp_path / "batch.bin")


def test_libsvm(tmp_path):
    (tmp_path / "a").write_bytes(b"-1 3:1 1:0.5 \r\n\n+1 2:-2\n1\n")
    x, y = files.read_libsvm(tmp_path / "a", 3)
    assert x.tolist() == [[0.5, 0, 1], [0, -2, 0], [0, 0, 0]]
    assert y.tolist() == [0, 1, 1]


@pytest.mark.parametrize("line", [b"2 1:1", b"x 1:1", b"1 4:1", b"1 0:1", b"1 1", b"1 1:z", b"1 -1:1"])
def test_a_damaged_libsvm_line_is_refused(tmp_path, line):
    (tmp_path / "a").write_bytes(b"-1 1:1\n" + line)
    with pytest.raises(Refused, match="sample 2 is not a label"):
        files.read_libsvm(tmp_path / "a", 3)


def test_npz_is_never_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}, 1], dtype=object))
    with pytest.raises(Refused, match="object arrays"):
        files.read_npz(tmp_path / "a.npz")


def test_a_damaged_npz_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=100))
    whole = (tmp_path / "a.npz").read_bytes()
    flipped = whole[:200] + bytes(byte ^ 255 for byte in whole[200:300]) + whole[300:]
    np.save(tmp_path / "b.npy", np.zeros(3))
    for content in (b"", b"text", whole[:-40], flipped, (tmp_path / "b.npy").read_bytes()):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(Refused, match="cannot be read as npz"):
            files.read_npz(tmp_path / "a.npz")


def test_a_missing_npz_says_so(tmp_path):
    with pytest.raises(Refused, match=r"nowhere.npz does not exist"):
        files.read_npz(tmp_path / "nowhere.npz")


def test_find_says_where_it_looked(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b.gz").touch()
    assert files.find("b", [tmp_path / "a", tmp_path], "") == tmp_path / "b.gz"
    with pytest.raises(Refused, match=r"a is missing; looked for .*/a, .*/a\.gz\n.*there"):
        files.find("a", [tmp_path], "get it there")
