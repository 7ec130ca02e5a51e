"""Models of texts, images, and tokens predict, and are measured, on what they learnt from, or refuse."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

import privsgp
import runs
from privsgp.data.images import ImageOptions, read_images
from privsgp.errors import Refused

REST = """
[graph]
name = "ring"
[privacy]
epsilon = 3.0
delta = 1e-3
[algorithm]
name = "privsgp"
batch = 10
steps = 5
step_size = 1.0
[engine]
device = "cpu"
"""
TEXTS = (
    """
[data]
nodes = 2
path = "reviews-{node}.jsonl"
text = { column = "text", label = "mood", labels = ["bad", "good"], vocabulary = 64, length = 4 }
[model]
name = "embedding"
width = 4
"""
    + REST
)
IMAGES = (
    """
[data]
nodes = 2
path = "site-{node}"
images = { labels = ["cat", "dog"], size = 4 }
[model]
name = "logistic"
"""
    + REST
)
SETTINGS = {
    "seed": 0,
    "graph": "ring",
    "privacy": {"epsilon": 3.0},
    "algorithm": {"name": "privsgp", "batch": 30, "steps": 3, "step_size": 0.3},
    "engine": {"device": "cpu"},
}


def lines(path, count, start=0):
    rows = [
        {"text": f"{'fine' if i % 2 else 'mess'} {i + start}", "mood": "good" if i % 2 else "bad"} for i in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))


def pictures(folder, seed, count=10):
    rng = np.random.default_rng(seed)
    for name, light in (("cat", 40), ("dog", 180)):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = light + rng.integers(0, 60, (6, 6, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{name}-{i}.png")


def rows_of(path):
    with path.open() as file:
        return list(csv.reader(file))


def trained(folder, text, *options):
    (folder / "run.toml").write_text(text)
    ran = runs.command("train", folder / "run.toml", "--out", folder / "run", *options)
    assert ran.code == 0, ran.err
    return folder / "run"


def test_texts(tmp_path):
    for node in range(2):
        lines(tmp_path / f"reviews-{node}.jsonl", 30, 100 * node)
    lines(tmp_path / "public.jsonl", 20, 1000)
    run = trained(tmp_path, TEXTS)
    assert runs.command("predict", run, tmp_path / "public.jsonl", "-o", tmp_path / "out.csv").code == 0
    head, *rows = rows_of(tmp_path / "out.csv")
    assert head == ["row", "class", "p(bad)", "p(good)"]
    assert len(rows) == 20
    (tmp_path / "bare.csv").write_text("text\nfine\nmess\n")  # without classes, in another form
    assert len(runs.command("predict", run, tmp_path / "bare.csv").out.splitlines()) == 3
    found = json.loads(runs.command("evaluate", run, tmp_path / "public.jsonl", "--json").out)
    assert 0 <= found["auc"] <= 1
    assert found == privsgp.load(run).evaluate(tmp_path / "public.jsonl")
    bare = runs.command("evaluate", run, tmp_path / "bare.csv")
    assert bare.code == 2
    assert "has no 'mood'" in bare.err


def test_records_in_other_words_are_refused_too(tmp_path):
    """Half of the texts, in another order and another kind of file, are still those that were trained on."""
    for node in range(2):
        lines(tmp_path / f"reviews-{node}.jsonl", 30, 100 * node)
    run = trained(tmp_path, TEXTS)
    rows = [json.loads(line) for line in (tmp_path / "reviews-1.jsonl").read_text().splitlines()]
    with (tmp_path / "again.csv").open("w") as file:
        table = csv.DictWriter(file, ["text", "mood"])
        table.writeheader()
        table.writerows(rows[20:5:-1])
    ran = runs.command("evaluate", run, tmp_path / "again.csv")
    assert ran.code == 2
    assert "was trained on" in ran.err


def test_files_that_were_moved_are_refused_too(tmp_path):
    for number, name in enumerate(("site-0", "site-1", "public")):
        pictures(tmp_path / name, number)
    run = trained(tmp_path, IMAGES)
    (tmp_path / "site-1").rename(tmp_path / "archive")
    for path in sorted((tmp_path / "archive" / "dog").iterdir())[1:]:
        path.rename(path.with_name(f"was-{path.name}"))
    ran = runs.command("evaluate", run, tmp_path / "archive")
    assert ran.code == 2
    assert "was trained on" in ran.err
    assert runs.command("evaluate", run, tmp_path / "public").code == 0


def test_a_model_of_images_takes_arrays(tmp_path):
    for number, name in enumerate(("site-0", "site-1", "public")):
        pictures(tmp_path / name, number)
    result = privsgp.load(trained(tmp_path, IMAGES))
    x, y = read_images(tmp_path / "public", ImageOptions(labels=["cat", "dog"], size=4))
    np.savez(tmp_path / "public.npz", x=x, y=y)
    np.savez(tmp_path / "real.npz", x=(x / 255).astype(np.float32), y=y)
    for name in ("public.npz", "real.npz"):
        np.testing.assert_array_equal(result.predict(tmp_path / name), result.predict(tmp_path / "public"))
        assert result.evaluate(tmp_path / name) == result.evaluate(tmp_path / "public")


def test_the_records_of_one_file_of_texts_are_refused(tmp_path):
    lines(tmp_path / "all.jsonl", 60)
    config = TEXTS.replace('path = "reviews-{node}.jsonl"', 'name = "all.jsonl"')
    run = trained(tmp_path, config)
    ran = runs.command("evaluate", run, tmp_path / "all.jsonl")
    assert ran.code == 2
    assert "was trained on" in ran.err


def test_a_file_from_the_data_folder_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "elsewhere" / "own.npz", x=rng.standard_normal((60, 3)), y=np.arange(60) % 2, classes=2)
    config = '[data]\nnodes = 2\nname = "own.npz"\n[model]\nname = "logistic"\n' + REST
    run = trained(tmp_path, config, "--data-dir", str(tmp_path / "elsewhere"))
    ran = runs.command("evaluate", run, tmp_path / "elsewhere" / "own.npz")
    assert ran.code == 2
    assert "was trained on" in ran.err


def test_images(tmp_path):
    for number, name in enumerate(("site-0", "site-1", "public")):
        pictures(tmp_path / name, number)
    run = trained(tmp_path, IMAGES)
    found = json.loads(runs.command("evaluate", run, tmp_path / "public", "--json").out)
    assert 0 <= found["auc"] <= 1
    (tmp_path / "flat").mkdir()
    for path in (tmp_path / "public").rglob("*.png"):
        shutil.copy(path, tmp_path / "flat")
    said = [runs.command("predict", run, tmp_path / name).out.splitlines() for name in ("public", "flat")]
    assert said[0][0] == "file,class,p(cat),p(dog)"
    assert len(said[0]) == 21
    assert [row.split(",")[0] for row in said[0][1:3]] == ["cat/cat-0.png", "cat/cat-1.png"]
    assert [row.split("/")[-1] for row in said[0]] == said[1]
    alone = runs.command("predict", run, tmp_path / "flat" / "dog-3.png").out.splitlines()[1]
    assert alone.split(",")[:2] == said[1][14].split(",")[:2]
    assert "an image outside a class folder" in runs.command("evaluate", run, tmp_path / "flat" / "dog-3.png").err
    shutil.copytree(tmp_path / "site-1", tmp_path / "copy")
    own = runs.command("evaluate", run, tmp_path / "copy")
    assert own.code == 2
    assert "was trained on" in own.err
    (tmp_path / "empty").mkdir()
    assert "empty has no image" in runs.command("predict", run, tmp_path / "empty").err
    assert "is not a file that this model can read" in runs.command("predict", run, tmp_path / "run.toml").err


class Words(nn.Module):
    """Mean embedding of tokens."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(30, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.words(x).mean(1))


def test_tokens(tmp_path):
    x = np.random.default_rng(0).integers(0, 30, (100, 5))
    result = privsgp.train(Words(), (x, x[:, 0] % 2), classes=2, nodes=2, out=tmp_path / "run", **SETTINGS)
    loaded = privsgp.load(tmp_path / "run", Words())
    assert (loaded.predict(x) == result.predict(torch.from_numpy(x))).all()
    with pytest.raises(Refused, match="outside the vocabulary"):
        loaded.predict(x + 30)
    with pytest.raises(Refused, match="dtype float"):
        loaded.predict(x / 2)


def test_data_sets_and_tensors_that_learn(tmp_path):
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    result = privsgp.train(nn.Linear(3, 2), (x, y), classes=2, nodes=2, out=tmp_path / "run", **SETTINGS)
    data = TensorDataset(x, y)
    assert (result.predict(data) == result.predict(x.clone().requires_grad_())).all()
    assert result.evaluate(data) == result.evaluate((x, y))
    with pytest.raises(Refused, match="data is a Tensor"):
        result.evaluate(x)


def linear(pixels=3 * 4 * 4):
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 2))


def test_folders_of_images_from_python(tmp_path):
    for number, name in enumerate(("site-0", "site-1", "public")):
        pictures(tmp_path / name, number)
    sites = {"aachen": tmp_path / "site-0", "basel": str(tmp_path / "site-1")}
    images = {"labels": ["cat", "dog"], "size": 4}
    settings = SETTINGS | {"algorithm": {"name": "privsgp", "batch": 10, "steps": 3}}
    private = settings | {"seed": None}
    result = privsgp.train(
        linear(), sites, images=images, test=tmp_path / "public", test_is_public=True, out=tmp_path / "run", **private
    )
    assert result.summary["samples"] == [20, 20]
    again = privsgp.load(tmp_path / "run", linear())
    assert again.evaluate(tmp_path / "public")["auc"] == result.summary["auc"]
    assert again.predict(tmp_path / "public" / "cat" / "cat-0.png").shape == (1,)
    with pytest.raises(Refused, match="was trained on"):
        again.evaluate(tmp_path / "site-1")
    shutil.copytree(tmp_path / "site-1", tmp_path / "copy")
    with pytest.raises(Refused, match="half of these records are a node's own"):
        privsgp.train(
            linear(), sites, images=images, test=tmp_path / "copy", test_is_public=True, out=tmp_path / "no", **private
        )
    divided = privsgp.train(linear(), tmp_path / "site-0", images=images, nodes=2, out=tmp_path / "divided", **settings)
    assert divided.summary["samples"] == [10, 10]


def test_files_of_texts_from_python(tmp_path):
    for node in range(2):
        lines(tmp_path / f"reviews-{node}.jsonl", 40, start=100 * node)
    files = [tmp_path / f"reviews-{node}.jsonl" for node in range(2)]
    text = {"label": "mood", "labels": ["bad", "good"], "vocabulary": 30, "length": 2}
    result = privsgp.train(Words(), files, text=text, out=tmp_path / "run", **SETTINGS)
    assert result.summary["samples"] == [40, 40]
    np.testing.assert_array_equal(result.predict(["fine 0", "mess 1"]), result.predict(np.array(["fine 0", "mess 1"])))
    (tmp_path / "new.csv").write_text("text\nfine 0\nmess 1\n")
    np.testing.assert_array_equal(result.predict(["fine 0", "mess 1"]), result.predict(tmp_path / "new.csv"))
    with pytest.raises(Refused, match="an embedding of 30 rows for a vocabulary of 31"):
        privsgp.train(Words(), files, text=text | {"vocabulary": 31}, out=tmp_path / "no", **SETTINGS)


def test_a_private_runs_own_table_is_refused_from_python_too(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 3))
    for node in range(2):
        np.savez(tmp_path / f"{node}.npz", x=x[node::2], y=np.arange(30) % 2)
    files = [tmp_path / "0.npz", tmp_path / "1.npz"]
    privsgp.train(nn.Linear(3, 2), files, classes=2, out=tmp_path / "run", **SETTINGS | {"seed": None})
    with pytest.raises(Refused, match="was trained on"):
        privsgp.load(tmp_path / "run", nn.Linear(3, 2)).evaluate(tmp_path / "1.npz")


@pytest.mark.parametrize(
    ("data", "more", "what"),
    [
        (["site-0"], {}, "site-0 is a folder"),
        (["site-9"], {"images": {"labels": ["cat", "dog"]}}, "site-9 cannot be read"),
        (["a.jsonl"], {}, "has no column of texts"),
        (["a.csv"], {}, "a.csv has no schema"),
        ([(np.zeros((4, 3)), np.zeros(4))], {"text": {}}, "is a tuple, and text=… is for files"),
        (["site-0"], {"images": {"label": ["cat"]}}, "unknown key data.images.label"),
        (["site-0"], {"images": {"label": ["cat"]}}, "data.images without labels"),
    ],
)
def test_files_that_cannot_be_read_are_refused_by_name(tmp_path, monkeypatch, data, more, what):
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "site-0", 0)
    lines(tmp_path / "a.jsonl", 4)
    with pytest.raises(Refused) as refused:
        privsgp.train(linear(), data, classes=2, out=tmp_path / "run", **more, **SETTINGS)
    assert what in refused.value.what
