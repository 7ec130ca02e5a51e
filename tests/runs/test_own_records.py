"""The nodes' own records pass for nothing public, from Python and from run.toml, and stay those a run began with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import privsgp
import runs
from privsgp.data import Dataset, from_arrays
from privsgp.data.loading import holds_records_of
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.runs import noted as noting

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(160, 6)).astype(np.float32), np.arange(160) % 2
SITES = [(X[40 * i : 40 * i + 40], Y[40 * i : 40 * i + 40]) for i in range(4)]


def train(out, data, algorithm=None, **more):
    own = {"name": "privsgp", "steps": 2, "batch": 8, "step_size": 0.1} | (algorithm or {})
    return privsgp.train(
        nn.Linear(6, 2), data, out=out, privacy={"epsilon": more.pop("epsilon", 5.0)}, algorithm=own,
        engine={"device": "cpu"}, progress=False, **more,
    )  # fmt: skip


@pytest.fixture
def files(tmp_path):
    found = [tmp_path / f"own-{node}.npz" for node in range(4)]
    for file, (x, y) in zip(found, SITES, strict=True):
        np.savez(file, x=x, y=y, classes=2)
    return found


def test_records_from_python_are_no_public_data_of_a_plan(tmp_path, files):
    np.savez(tmp_path / "copy.npz", x=X[rng.permutation(40)], y=np.zeros(40, int))
    plan = {"algorithm": {"step_size": "auto"}, "classes": 2}
    (tmp_path / "mapped").mkdir()
    np.save(tmp_path / "mapped" / "x.npy", X[:40])
    for data in (files, SITES, dict(enumerate(files))):
        for name in ("own-0.npz", "copy.npz", "mapped"):
            with pytest.raises(Refused, match="the nodes' own data"):
                train(tmp_path / "out", data, plan={"data": str(tmp_path / name)}, **plan)
    with pytest.raises(Refused, match="the nodes' own data"):  # no ε covers a choice by them
        train(tmp_path / "out", files, plan={"data": "private", "may_spend": True}, **plan)
    assert not (tmp_path / "out" / "plan.json").exists()


def test_a_file_of_some_records_of_each_site_is_the_sites_own(tmp_path, files):
    np.savez(tmp_path / "mixed.npz", x=np.concatenate([x[:10] for x, _ in SITES]), y=np.zeros(40, int))
    assert not any(holds_records_of(tmp_path / "mixed.npz", [file]) for file in files)
    assert holds_records_of(tmp_path / "mixed.npz", files)
    np.savez(tmp_path / "other.npz", x=X + 1, y=Y)
    assert not holds_records_of(tmp_path / "other.npz", files)


@pytest.mark.parametrize("data", [(X, Y), from_arrays(X, Y, X[:100], Y[:100], classes=2), [(X[:80], Y[:80])]])
def test_public_test_data_are_no_training_records(tmp_path, data):
    test = {} if isinstance(data, Dataset) else {"test": (X[:80], Y[:80]), "classes": 2}
    with pytest.raises(Refused, match="a node's own"):
        train(tmp_path / "out", data, nodes=1, test_is_public=True, **test)


def test_a_data_set_with_test_data_takes_no_others(tmp_path):
    own = from_arrays(X, Y, X + 1, Y, classes=2)
    with pytest.raises(Refused, match="test data of its own"):
        train(tmp_path / "out", own, nodes=2, test=(X + 2, Y), test_is_public=True)
    bare = from_arrays(X, Y, classes=2)
    result = train(tmp_path / "out", bare, nodes=2, test=(X + 2, Y), test_is_public=True)
    right = result.model(torch.from_numpy(X + 2)).argmax(1).numpy() == Y
    assert result.summary["test_accuracy"] == pytest.approx(right.mean())


@pytest.mark.parametrize(("x", "y", "words"), [(np.inf, 0, "not finite"), (1.0, 2, "outside 0..1")])
def test_a_data_set_made_by_hand_is_looked_at(tmp_path, x, y, words):
    bad, labels = X.copy(), Y.copy()
    bad[3], labels[3] = x, y
    with pytest.raises(Refused, match=words):
        train(tmp_path / "out", Dataset("mine", bad, labels, None, None, 2), nodes=2)


SMALL = """
[data]
name = "own.npz"
nodes = 2
test_path = "public.npz"
{classes}
[privacy]
epsilon = 3.0
[algorithm]
name = "privsgp"
steps = 2
batch = 8
step_size = 0.1
"""


def test_all_of_a_public_test_file_is_looked_at(tmp_path):
    np.savez(tmp_path / "own.npz", x=X, y=Y)
    np.savez(tmp_path / "public.npz", x=X + 1, y=Y, x_test=X, y_test=Y)
    ran = runs.command("train", runs.small(tmp_path, SMALL.format(classes="classes = 2")), "--out", tmp_path / "out")
    assert ran.code == 2
    assert "a node's own" in ran.err


def test_classes_are_not_counted_in_a_sites_own_test_labels(tmp_path):
    np.savez(tmp_path / "own.npz", x=X, y=Y, x_test=X + 2, y_test=np.arange(160) % 5)
    np.savez(tmp_path / "public.npz", x=X + 1, y=Y)
    ran = runs.command("train", runs.small(tmp_path, SMALL.format(classes="")), "--out", tmp_path / "out")
    assert ran.code == 2
    assert "data.classes" in ran.err


def test_a_run_goes_on_with_the_records_it_began_with(tmp_path, files):
    """Tables hold what they gave: taken out by others, a record's share would leave its clip."""
    for name, changed in (("order", files[::-1]), ("content", files)):
        out = tmp_path / name
        assert_interrupted(out, files)
        if name == "content":
            np.savez(files[0], x=2 * X[:40], y=Y[:40], classes=2)
        with pytest.raises(Refused, match="other records than it began with"):
            train(out, changed, {"name": "privsgp-vr", "steps": 40}, resume=True)
    (out / "private" / "files.json").unlink()
    with pytest.raises(Refused, match="has lost private/files"):
        train(out, files, {"name": "privsgp-vr", "steps": 40}, resume=True)


def assert_interrupted(out, files):
    """Leave a run that stopped half-way."""
    from unittest import mock

    from privsgp.engine.trainer import Trainer

    with (
        mock.patch.object(Trainer, "_release", side_effect=[None, None, KeyboardInterrupt]),
        pytest.raises(KeyboardInterrupt),
    ):
        train(out, files, {"name": "privsgp-vr", "steps": 40})
    assert (out / "config.toml").exists()


def test_files_that_changed_nodes_do_not_go_on_with_each_others_ledgers(tmp_path, files):
    budgets = [0.5, 5.0, 5.0, 5.0]
    train(tmp_path / "first", files, epsilon=budgets)
    swapped = [files[1], files[0], *files[2:]]
    with pytest.raises(Refused, match="is node 0's, and was node 1's"):
        train(tmp_path / "second", swapped, epsilon=[2 * e for e in budgets], ledger=tmp_path / "first")
    train(tmp_path / "second", files, epsilon=[2 * e for e in budgets], ledger=tmp_path / "first")


def _images(folder, classes=("cat", "dog"), swap=False):
    from PIL import Image

    for number, name in enumerate(classes[::-1] if swap else classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), 50 + 100 * number).save(folder / name / "one.png")


@pytest.mark.parametrize("parts", [("",), ("-0-0", "-1-1")])
def test_labels_and_the_files_of_every_process_are_noted(tmp_path, parts):
    """One process, or two of torchrun with a node each."""
    mapped = [tmp_path / "0", tmp_path / "1"]
    for i, path in enumerate(mapped):
        path.mkdir()
        np.save(path / "x.npy", X[:5] + i)
        np.save(path / "y.npy", Y[:5])
    (run := tmp_path / "run" / "private").mkdir(parents=True)
    folders = [Folder(run.parent, part) for part in parts]
    blocks = [mapped] if len(parts) == 1 else [[path] for path in mapped]
    for first, (folder, files) in enumerate(zip(folders, blocks, strict=True)):
        noting.note_files(folder, files, first)
        noting.refuse_other_files(folder, files, first, None)
    assert sum(len(one.files) for one in noting.noted(run.parent)) == 2
    swapped = mapped[::-1] if len(parts) == 1 else [mapped[1]]
    with pytest.raises(Refused, match="other records than it began with"):
        noting.refuse_other_files(folders[0], swapped, 0, None)
    with pytest.raises(Refused, match="was node 1's"):
        noting.refuse_other_files(Folder(tmp_path / "next", parts[0]), swapped, 0, run.parent)
    np.save(mapped[0] / "y.npy", 1 - Y[:5])
    with pytest.raises(Refused, match="other records than it began with"):
        noting.refuse_other_files(folders[0], blocks[0], 0, None)


def test_an_image_that_changes_its_class_is_another_record(tmp_path):
    (run := tmp_path / "run" / "private").mkdir(parents=True)
    folder = Folder(run.parent)
    _images(tmp_path / "site")
    noting.note_files(folder, [tmp_path / "site"], 0)
    _images(tmp_path / "site", swap=True)
    assert noting.holds_moved(tmp_path / "site", noting.noted(run.parent)[0].contents)
    with pytest.raises(Refused, match="other records than it began with"):
        noting.refuse_other_files(folder, [tmp_path / "site"], 0, None)
