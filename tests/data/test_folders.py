"""Files of sites that are no tables: images in class folders, texts by lines, arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from privsgp.data.images import ImageOptions, read_images
from privsgp.data.loading import Form, holds_records_of
from privsgp.data.text import TextOptions, read_texts
from privsgp.errors import Refused
from privsgp.runs import config as configs
from privsgp.runs.problem import load_problem
from privsgp.runs.train import run

LABELS = ["cat", "dog"]


def _picture(path, value, size=(6, 5), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def _site(folder, classes=LABELS, count=6, blue=10):
    for number, name in enumerate(classes):
        for i in range(count):
            _picture(folder / name / f"{i}.png", (200 * number, 30 * i, blue))


def test_images_are_read_in_the_order_of_public_classes(tmp_path):
    _picture(tmp_path / "dog" / "b.jpg", (255, 255, 255))
    _picture(tmp_path / "cat" / "a.png", (255, 0, 0))
    _picture(tmp_path / "dog" / "a.png", 128, mode="L")
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    x, y = read_images(tmp_path, ImageOptions(labels=LABELS))
    assert x.shape == (3, 3, 5, 6)
    assert y.tolist() == [0, 1, 1]
    assert x[0, :, 0, 0].tolist() == [255, 0, 0]
    assert x[1, :, 0, 0].tolist() == [128] * 3
    small, _ = read_images(tmp_path, ImageOptions(labels=LABELS, size=4, grey=True))
    assert small.shape == (3, 1, 4, 4)
    turned, y = read_images(tmp_path, ImageOptions(labels=["dog", "bird", "cat"]))
    assert y.tolist() == [0, 0, 2]
    assert turned.shape == x.shape


def test_images_that_were_written_as_arrays_are_the_same_data(tmp_path):
    _site(tmp_path / "site")
    form = Form(images=ImageOptions(labels=LABELS, size=4))
    x, y = read_images(tmp_path / "site", form.images)
    for rows in (x, (x / 255).astype(np.float32), x[::-1]):
        np.savez(tmp_path / "again.npz", x=rows, y=y)
        assert holds_records_of(tmp_path / "again.npz", [tmp_path / "site"], form)
    np.savez(tmp_path / "again.npz", x=255 - x, y=y)
    assert not holds_records_of(tmp_path / "again.npz", [tmp_path / "site"], form)


def test_what_is_no_image_or_of_another_size_or_class_is_refused(tmp_path):
    with pytest.raises(Refused, match="cannot be read"):
        read_images(tmp_path / "nowhere", ImageOptions(labels=LABELS))
    _picture(tmp_path / "cat" / "a.png", 0)
    with pytest.raises(Refused, match="class folder 'cat'"):
        read_images(tmp_path, ImageOptions(labels=["dog"]))
    _picture(tmp_path / "cat" / "b.png", 0, size=(7, 7))
    with pytest.raises(Refused, match=r"set data\.images\.size") as refused:
        read_images(tmp_path, ImageOptions(labels=LABELS))
    assert "data.images.size" in refused.value.remedy
    (tmp_path / "cat" / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    with pytest.raises(Refused, match="cannot be read as an image"):
        read_images(tmp_path, ImageOptions(labels=LABELS))


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    _picture(tmp_path / "cat" / "a.png", 0)
    monkeypatch.setattr("privsgp.data.images._PIXELS", 20)
    with pytest.raises(Refused, match="has 30 pixels"):
        read_images(tmp_path, ImageOptions(labels=["cat"]))


def test_tokens_are_hashes_of_lower_case_words_whoever_reads_them():
    found = TextOptions(vocabulary=100, length=6).encoded(["The cat, the CAT", "", "cat " * 9])
    assert found[0, 0] == found[0, 3]
    assert found[0, 1] == found[0, 4] == found[2, 5]
    assert found[1].tolist() == [0] * 6
    assert 0 < found[0, :5].min() <= found.max() < 100
    assert TextOptions(vocabulary=4096, length=1).encoded(["privacy"]).tolist() == [[3067]]  # whatever the machine


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv"])
def test_texts_are_read_with_their_classes(tmp_path, ending):
    rows = [("good, really\ngood", "yes"), ("bad", "no")]
    path = tmp_path / f"site.{ending}"
    if ending == "jsonl":
        path.write_text("".join(json.dumps({"review": t, "kind": k}) + "\n" for t, k in rows))
    else:
        mark = "," if ending == "csv" else "\t"
        path.write_text(f"kind{mark}review\n" + "".join(f'{k}{mark}"{t}"\n' for t, k in rows))
    x, y, *_ = read_texts(
        path, TextOptions(column="review", label="kind", labels=["no", "yes"], vocabulary=50, length=5)
    )
    assert y.tolist() == [1, 0]
    assert (x == TextOptions(vocabulary=50, length=5).encoded([t for t, _ in rows])).all()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "a"}', "line 2 has no 'label'"),
        ('{"text": "a", "label": "maybe"}', "'maybe' is no number"),
        ("[1, 2]", "line 2 is no JSON object"),
        ("{", "line 2"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path, line, words):
    (tmp_path / "a.jsonl").write_text('{"text": "fine", "label": 1}\n' + line)
    with pytest.raises(Refused, match=words):
        read_texts(tmp_path / "a.jsonl", TextOptions())


def _config(data, **sections):
    values = {"seed": 1, "privacy": {"epsilon": 5.0}, "graph": {"name": "ring"}, "data": {"nodes": 2} | data}
    return configs.parse(values | {"algorithm": {"name": "privsgp", "steps": 3, "batch": 4}} | sections)


def test_a_run_on_class_folders(tmp_path):
    _site(tmp_path / "site-0")
    _site(tmp_path / "site-1", ["dog"])
    _site(tmp_path / "public", count=2, blue=99)
    images = {"labels": LABELS, "size": 4}
    config = _config(
        {"path": str(tmp_path / "site-{node}"), "images": images, "test_path": str(tmp_path / "public")},
        model={"name": "logistic"},
    )
    problem = load_problem(config)
    assert problem.dataset.classes == 2
    assert problem.dataset.x.max() <= 1
    result = run(config, problem, tmp_path / "run")
    assert result.summary["samples"] == [12, 6]
    assert result.summary["test_accuracy"] is not None
    with pytest.raises(Refused, match="is a folder") as refused:
        load_problem(_config({"path": str(tmp_path / "site-{node}")}))
    assert '"cat", "dog"' in refused.value.remedy


def test_a_run_on_texts(tmp_path):
    for node in range(2):
        rows = [{"text": "good day" if i % 2 else "bad luck", "label": i % 2} for i in range(10)]
        (tmp_path / f"site-{node}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    text = {"vocabulary": 64, "length": 4}
    config = _config(
        {"path": str(tmp_path / "site-{node}.jsonl"), "text": text, "classes": 2},
        model={"name": "embedding", "width": 4},
    )
    result = run(config, load_problem(config), tmp_path / "run")
    assert max(result.summary["epsilon_spent"]) <= 5
    with pytest.raises(Refused, match="tokens are names"):
        load_problem(_config({"path": str(tmp_path / "site-{node}.jsonl"), "text": text, "classes": 2}))
    with pytest.raises(Refused, match="takes sequences of tokens"):
        load_problem(_config({"name": "digits"}, model={"name": "embedding"}))


def test_tokens_in_npz_files_stay_whole(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "site-0.npz", x=rng.integers(0, 9, (12, 5)), y=np.arange(12) % 2)
    data = {"path": str(tmp_path / "site-{node}.npz"), "nodes": 1, "classes": 2}
    config = _config(data | {"vocabulary": 9}, model={"name": "embedding", "width": 3})
    problem = load_problem(config)
    assert problem.dataset.x.dtype == np.int64
    assert run(config, problem, tmp_path / "run").summary["dim"] == 9 * 3 + 3 * 2 + 2
    with pytest.raises(Refused, match="outside the vocabulary"):
        load_problem(_config(data | {"vocabulary": 5}, model={"name": "embedding"}))
