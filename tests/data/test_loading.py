from __future__ import annotations

import gzip
import os
import struct

import numpy as np
import pytest
from sklearn.datasets import load_digits

from privsgp.data import load, load_sites, published
from privsgp.data.loading import holds_records_of
from privsgp.errors import Refused

real = pytest.mark.skipif("PRIVSGP_DATA" not in os.environ, reason="PRIVSGP_DATA is not set")
X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 2, 1])


def write_mnist(folder, *, zipped):
    folder.mkdir(parents=True, exist_ok=True)
    images = np.zeros((2, 28, 28), np.uint8)
    images[:, 0, 0] = 255
    for part in ("train", "t10k"):
        for kind, array in (("images-idx3", images), ("labels-idx1", np.array([3, 9], np.uint8))):
            content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
            name = f"{part}-{kind}-ubyte"
            (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(content) if zipped else content)


def test_digits_split_is_fixed_and_balanced():
    data = load("digits")
    assert (data.x.shape, data.x.dtype, data.classes) == ((1442, 64), np.float32, 10)
    assert data.x_test is not None
    assert data.y_test is not None
    assert len(data.x_test) == 355
    assert np.bincount(data.y_test).min() >= 34
    assert np.isclose(data.x.min(), -0.3 / 0.37)
    assert np.isclose(data.x.max(), 0.7 / 0.37)
    everything, labels = load_digits(return_X_y=True)
    fifth_three = everything[np.flatnonzero(labels == 3)[4]]
    assert np.allclose(data.x_test[np.flatnonzero(data.y_test == 3)[0]] * 0.37 + 0.3, fifth_three / 16, atol=1e-6)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["MNIST/raw", "."])
def test_mnist_layouts(tmp_path, monkeypatch, zipped, place):
    write_mnist(tmp_path / place, zipped=zipped)
    monkeypatch.setenv("PRIVSGP_DATA", str(tmp_path))
    data = load("mnist")
    assert data.x.shape == (2, 1, 28, 28)
    assert data.y.tolist() == [3, 9]
    assert data.classes == 10
    assert np.allclose(data.x[0, 0, 0, :2], [(1 - 0.1307) / 0.3081, -0.1307 / 0.3081])


def test_cifar10(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "CIFAR_RECORDS", 1)
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for label, name in enumerate(["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"]):
        (tmp_path / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(bytes([label]) + bytes(3072))
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(bytes([9]) + b"\xff" * 3072)
    data = load("cifar10", data_dir=tmp_path)
    assert data.y.tolist() == [0, 1, 2, 3, 4]
    assert data.x_test is not None
    assert np.allclose(data.x[0, :, 5, 5], [-0.4914 / 0.2470, -0.4822 / 0.2435, -0.4465 / 0.2616])
    assert np.allclose(data.x_test[0, :, 5, 5], [0.5086 / 0.2470, 0.5178 / 0.2435, 0.5535 / 0.2616])


def test_a9a(tmp_path):
    (tmp_path / "a9a").mkdir()
    (tmp_path / "a9a" / "a9a").write_text("-1 3:1\n+1 123:1\n")
    (tmp_path / "a9a" / "a9a.t.gz").write_bytes(gzip.compress(b"+1 1:1\n"))
    data = load("a9a", data_dir=tmp_path)
    assert (data.x.shape, data.classes, data.y.tolist()) == ((2, 123), 2, [0, 1])
    assert np.argwhere(data.x).tolist() == [[0, 2], [1, 122]]


@pytest.mark.parametrize(
    ("name", "file", "source"),
    [("mnist", "train-images-idx3-ubyte", "idx"), ("cifar10", "data_batch_1.bin", "binary"), ("a9a", "a9a", "LIBSVM")],
)
def test_a_missing_file_says_which_where_and_whence(tmp_path, monkeypatch, name, file, source):
    with pytest.raises(Refused, match=rf"{file} is missing; looked for {tmp_path}.*\n.*{source}.*PRIVSGP_DATA"):
        load(name, data_dir=tmp_path)
    monkeypatch.delenv("PRIVSGP_DATA", raising=False)
    with pytest.raises(Refused, match=f"needs {file}.* no data folder"):
        load(name)


def test_the_argument_stands_above_the_environment(tmp_path, monkeypatch):
    write_mnist(tmp_path / "here", zipped=True)
    monkeypatch.setenv("PRIVSGP_DATA", str(tmp_path / "elsewhere"))
    assert len(load("mnist", data_dir=tmp_path / "here").x) == 2


def test_unknown_name():
    with pytest.raises(Refused, match=r"'mnits' is unknown\n.*mnist"):
        load("mnits")


def test_npz_by_path_or_in_the_data_folder(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y, x_test=X[:2], y_test=np.array([0, 2]), classes=3)
    for data in (load(str(tmp_path / "a.npz")), load("a.npz", data_dir=tmp_path)):
        assert np.array_equal(data.x, X)
        assert data.y_test is not None
        assert data.y_test.tolist() == [0, 2]
    assert load("a.npz", data_dir=tmp_path, task="regression").y.dtype == np.float32


def test_npz_may_say_how_many_classes(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y + 1, classes=5)
    assert load("a.npz", data_dir=tmp_path).classes == 5
    assert load("a.npz", data_dir=tmp_path, classes=4).classes == 4
    np.savez(tmp_path / "a.npz", x=X, y=Y, classes=2.5)
    with pytest.raises(Refused, match=r"classes = 2.5"):
        load("a.npz", data_dir=tmp_path)


def test_npz_without_y(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, labels=Y)
    with pytest.raises(Refused, match="has no array y; it holds x, labels"):
        load("a.npz", data_dir=tmp_path)


def write_sites(folder, *sites):
    for node, arrays in enumerate(sites):
        np.savez(folder / f"site-{node}.npz", **arrays)
    return str(folder / "site-{node}.npz")


def test_sites_are_pooled_and_keep_their_rows(tmp_path):
    template = write_sites(
        tmp_path, {"x": X, "y": Y}, {"x": X[:2], "y": Y[:2], "x_test": X, "y_test": Y}, {"x": X[1:], "y": Y[1:]}
    )
    data, rows = load_sites(template, range(3))
    assert [part.tolist() for part in rows] == [[0, 1, 2, 3], [4, 5], [6, 7, 8]]
    assert np.array_equal(data.x[rows[2]], X[1:])
    assert np.array_equal(data.y[rows[1]], Y[:2])
    assert data.x_test is not None
    assert (data.classes, len(data.x_test)) == (3, 4)
    one, rows = load_sites(template, [1])
    assert (len(one.x), [part.tolist() for part in rows]) == (2, [[0, 1]])


def test_sites_of_regression(tmp_path):
    data, _ = load_sites(write_sites(tmp_path, {"x": X, "y": X[:, 0]}), [0], task="regression")
    assert data.classes is None
    assert data.y.dtype == np.float32


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ({"x": X[:, :2], "y": Y}, r"site-1.npz: a sample of x has shape \(2,\), one of .*site-0.npz \(3,\)"),
        ({"x": X, "y": np.array([0, 1, -1, 0])}, r"site-1.npz: y\[2\] = -1"),
        ({"x": X * np.nan, "y": Y}, r"site-1.npz: x\[0, 0\] = nan is not finite"),
        ({"x": X, "y": Y, "classes": 4}, r"`classes` is \[3, 4\]"),
        ({"x": X, "y": Y + 1}, r"site-1.npz: y\[2\] = 3 is outside 0..2"),
    ],
)
def test_a_wrong_site_is_named(tmp_path, site, said):
    template = write_sites(tmp_path, {"x": X, "y": Y, "classes": 3}, site)
    with pytest.raises(Refused, match=said):
        load_sites(template, range(2))


def test_a_missing_site_is_named(tmp_path):
    template = write_sites(tmp_path, {"x": X, "y": Y})
    with pytest.raises(Refused, match=r"site-1.npz does not exist"):
        load_sites(template, range(2))
    with pytest.raises(Refused, match=r"has no \{node\}"):
        load_sites("site.npz", range(2))


@real
@pytest.mark.data
def test_the_real_mnist():
    data = load("mnist")
    assert data.x_test is not None
    assert (len(data.x), len(data.x_test)) == (60_000, 10_000)
    assert abs(data.x.mean(dtype=np.float64)) < 1e-3
    assert abs(data.x.std(dtype=np.float64) - 1) < 1e-3
    assert data.y[:5].tolist() == [5, 0, 4, 1, 9]


@real
@pytest.mark.data
def test_the_real_a9a():
    data = load("a9a")
    assert data.x_test is not None
    assert (data.x.shape, data.x_test.shape) == ((32_561, 123), (16_281, 123))
    assert np.bincount(data.y).tolist() == [24_720, 7_841]


def test_records_that_were_saved_anew_are_the_same_data(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 6)).astype(np.float32), np.arange(20) % 3
    own, public = tmp_path / "site-0.npz", tmp_path / "public.npz"
    np.savez(own, x=x, y=y)
    order = rng.permutation(20)
    for rows in (x, x[order], x[order[:5]], np.concatenate([x, x + 1]), x.astype(np.float64)):
        np.savez_compressed(public, x=rows, y=np.zeros(len(rows), int))
        assert holds_records_of(public, [own])
    for rows in (x + 1, np.concatenate([x[:1], x + 1])):  # one record in common is no copy
        np.savez(public, x=rows, y=np.zeros(len(rows), int))
        assert not holds_records_of(public, [own])
    public.write_text("")
    assert not holds_records_of(public, [own])
