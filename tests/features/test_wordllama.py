"""Word vectors out of a package: a public rule makes tokens, and a text's features are its own alone."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from safetensors.torch import save

from privsgp.data import tokens as subwords
from privsgp.data.text import TextOptions
from privsgp.errors import Refused
from privsgp.features import wordllama
from privsgp.features.maps import make_encoder
from privsgp.runs import config as configs
from privsgp.runs.problem import load_problem
from privsgp.runs.train import run

BYTES = {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
WORDS = {"▁": 300, "a": 301, "b": 302, "▁a": 303, "ab": 304, "▁ab": 305, "▁▁": 306}
MERGES = ["▁ ▁", "a b", "▁ a", "▁ ab"]


@pytest.fixture(autouse=True)
def _package(tmp_path, monkeypatch):
    """Put a small package of that name in the place of the real one."""
    package = tmp_path / "lib" / "wordllama"
    for name in ("tokenizers", "weights"):
        (package / name).mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('code of a package was run')")
    told = json.dumps({"model": {"vocab": {"<unk>": 0} | BYTES | WORDS, "merges": MERGES}}).encode()
    vectors = torch.randn(subwords.VOCABULARY, 4, generator=torch.Generator().manual_seed(0)).half()
    files = {subwords._TOKENIZER: told, wordllama._FILE: save({"embedding.weight": vectors})}
    for module, (name, raw) in zip((subwords, wordllama), files.items(), strict=True):
        (package / name).write_bytes(raw)
        monkeypatch.setattr(module, "_SHA256", hashlib.sha256(raw).hexdigest())
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.setenv("PRIVSGP_CACHE", str(tmp_path / "cache"))
    subwords._tables.cache_clear()
    subwords._encoded.cache_clear()
    yield
    subwords._tables.cache_clear()
    subwords._encoded.cache_clear()


def test_the_pair_that_was_learnt_first_is_merged_first():
    found = TextOptions(tokens="wordllama", length=6).encoded(["ab a", "aab", "  b", "é", ""])
    assert found.tolist() == [
        [305, 303, 0, 0, 0, 0],  # ▁ + ab; ▁ + a
        [303, 304, 0, 0, 0, 0],
        [306, 300, 302, 0, 0, 0],
        [300, 3 + 0xC3, 3 + 0xA9, 0, 0, 0],
        [0] * 6,
    ]
    assert TextOptions(tokens="wordllama", length=4).encoded(["ab " * 9]).tolist() == [[305] * 4]


def test_a_package_that_is_not_here_is_named_with_its_command(monkeypatch):
    for module in (subwords, wordllama):
        monkeypatch.setattr(module, "PACKAGE", "no_such_package")
    with pytest.raises(Refused, match=r"pip install 'privsgp\[encoders\]'"):
        TextOptions(tokens="wordllama", length=4).encoded(["ab"])
    with pytest.raises(Refused, match=r"pip install 'privsgp\[encoders\]'"):
        make_encoder("wordllama", {}, (5,))


def test_features_of_a_text_are_the_mean_of_its_tokens_at_one_length():
    encoder, shape = make_encoder("wordllama", {}, (5,))
    x = torch.tensor([[303, 305, 0, 0, 0], [305, 303, 303, 305, 0], [0, 0, 0, 0, 0]])
    out = encoder(x)
    assert shape == (4,)
    torch.testing.assert_close(out[0], out[1])
    torch.testing.assert_close(out[:2].norm(dim=1), torch.full((2,), 2.0))
    assert out[2].tolist() == [0.0] * 4
    torch.testing.assert_close(out, torch.cat([encoder(row[None]) for row in x]))
    with pytest.raises(Refused, match="samples of shape"):
        make_encoder("wordllama", {}, (3, 8, 8))


def _config(path, **changes):
    values = {
        "seed": 1, "data": {"path": path, "nodes": 1, "classes": 2, "text": {"tokens": "wordllama", "length": 4}},
        "features": {"name": "wordllama"}, "model": {"name": "logistic"}, "privacy": {"epsilon": 3.0},
        "algorithm": {"name": "privsgp", "steps": 2, "batch": 4},
    }  # fmt: skip
    return configs.parse(values | changes)


def test_a_run_on_texts_says_what_it_rests_on(tmp_path):
    rows = [{"text": "ab a" if i % 2 else "b b", "label": i % 2} for i in range(12)]
    (tmp_path / "site-0.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = _config(str(tmp_path / "site-{node}.jsonl"))
    result = run(config, load_problem(config), tmp_path / "run")
    assert result.summary["pretraining"] == "public pre-training on texts (wordllama)"
    assert result.summary["dim"] == 2 * (4 + 1)


def test_its_tokens_and_its_vectors_go_together(tmp_path):
    with pytest.raises(Refused, match=r"data\.text\.tokens"):
        _config("site-{node}.jsonl", features={"name": "none"})
    with pytest.raises(Refused, match=r"data\.text\.tokens"):
        _config("site-{node}.npz", data={"path": "site-{node}.npz", "nodes": 1})
    assert TextOptions(tokens="wordllama").size == 32_000
