from __future__ import annotations

import contextlib
import gzip
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest

from privsgp.data import files, published
from privsgp.errors import Refused


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def test_idx(tmp_path):
    (tmp_path / "a").write_bytes(idx(IMAGES))
    (tmp_path / "b.gz").write_bytes(gzip.compress(idx(IMAGES)))
    assert np.array_equal(published.read_idx(tmp_path / "a"), IMAGES)
    assert np.array_equal(published.read_idx(tmp_path / "b.gz"), IMAGES)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a", b"", "is damaged"),
        ("a", b"\0\0\x08\x03\0\0", "is damaged"),
        ("a", b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "does not start like"),
        ("a", idx(IMAGES)[:-1], "cannot reshape"),
        ("a", idx(IMAGES) + b"\0", "cannot reshape"),
        ("a.gz", idx(IMAGES), "damaged"),
        ("a.gz", gzip.compress(idx(IMAGES), mtime=0)[:-9], "damaged"),
        ("a.gz", gzip.compress(idx(IMAGES), mtime=0)[:20] + b"\xff" * 30, "damaged"),
    ],
    ids=range(8),  # bytes make poor names
)
def test_a_damaged_idx_is_refused(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Refused, match=said):
        published.read_idx(tmp_path / name)


def test_cifar(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "CIFAR_RECORDS", 2)
    record = bytes([7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes([3]) * 1024
    (tmp_path / "batch.bin").write_bytes(record + record)
    images, labels = published.read_cifar(tmp_path / "batch.bin")
    assert labels.tolist() == [7, 7]
    assert images.shape == (2, 3, 32, 32)
    assert images[1, :, 31, 31].tolist() == [1, 2, 3]
    (tmp_path / "batch.bin").write_bytes(record)
    with pytest.raises(Refused, match="is damaged: cannot reshape"):
        published.read_cifar(tmp_path / "batch.bin")


def test_libsvm(tmp_path):
    (tmp_path / "a").write_bytes(b"-1 1:0.5 3:1 \r\n\n+1 2:-2\n1\n")
    x, y = published.read_libsvm(tmp_path / "a", 3)
    assert x.tolist() == [[0.5, 0, 1], [0, -2, 0], [0, 0, 0]]
    assert y.tolist() == [0, 1, 1]


@pytest.mark.parametrize("line", [b"2 1:1", b"x 1:1", b"1 4:1", b"1 0:1", b"1 1", b"1 1:z", b"1 -1:1"])
def test_a_damaged_libsvm_line_is_refused(tmp_path, line):
    (tmp_path / "a").write_bytes(b"-1 1:1\n" + line)
    with pytest.raises(Refused, match="is damaged"):
        published.read_libsvm(tmp_path / "a", 3)


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
    assert published.find("b", [tmp_path / "a", tmp_path], "") == tmp_path / "b.gz"
    with pytest.raises(Refused, match=r"a is missing; looked for .*/a, .*/a\.gz\n.*there"):
        published.find("a", [tmp_path], "get it there")


def _crafted(path, key="x", header=None, body=b"", **info):
    """Write an npz whose member says what it likes about itself."""
    said = repr(header or {"descr": "<f4", "fortran_order": False, "shape": (2, 2)}).encode()
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(said) + 1) + said + b"\n" + body
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{key}.npy"), npy, **info)
        archive.writestr("y.npy", npy)
    return path


def _shape(*shape, descr="<f4"):
    return {"descr": descr, "fortran_order": False, "shape": shape}


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (_shape(10**12), b"\0" * 16),
        (_shape(10**30), b"\0" * 16),
        (_shape(2**62, 4), b"\0" * 16),
        (_shape(-2, -2), b"\0" * 16),
        (_shape(0, 10**30), b""),
        (_shape(4, descr="|O"), b"\0" * 16),
        (_shape(4, descr=[("a", "<f4"), ("b", "|O")]), b"\0" * 16),
        (_shape(4, descr=("<f4", (10**9,))), b"\0" * 16),
        (_shape(*[1] * 100), b"\0" * 4),
        ({"descr": "<f4", "shape": (4,)}, b"\0" * 16),
        (_shape(4), b"\0" * 15),
        (_shape(4, descr="nonsense"), b"\0" * 16),
    ],
    ids=range(12),
)
def test_an_npz_whose_header_does_not_fit_is_refused_before_anything_is_taken(tmp_path, header, body):
    with pytest.raises(Refused, match=r"a\.npz") as refused:
        files.read_npz(_crafted(tmp_path / "a.npz", header=header, body=body))
    assert "allow_pickle=True" not in str(refused.value)


def test_an_npz_that_unpacks_to_more_than_there_is_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros((1000, 1000), np.float32), y=np.zeros(1000, np.int64))
    monkeypatch.setattr(files.devices, "free_memory", lambda: 3_900_000)
    with pytest.raises(Refused, match=r"bomb\.npz .* 4\.0 MB"):
        files.read_npz(path)


def test_what_else_lies_in_an_npz_is_not_opened(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.ones((2, 2)), y=np.ones(2))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../escape.npy", b"nonsense")
        archive.writestr("\x1b[31mred.npy", pickle.dumps(print))
    assert sorted(files.read_npz(path)) == ["x", "y"]
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("flip", range(0, 400, 7))
def test_no_flipped_byte_of_an_npz_is_a_traceback(tmp_path, flip):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(64.0).reshape(8, 8), y=np.arange(8))
    raw = bytearray(path.read_bytes())
    raw[flip % len(raw)] ^= 0xFF
    path.write_bytes(raw)
    with contextlib.suppress(Refused):
        files.read_npz(path)


@pytest.mark.usefixtures("hurried")
def test_a_pipe_is_no_npz(tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    with pytest.raises(Refused, match="no regular file"):
        files.read_npz(tmp_path / "a.npz")
