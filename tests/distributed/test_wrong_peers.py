"""A process that does not fit is refused at the start, before data is touched, and all are told what differs."""

from __future__ import annotations

import cluster
import numpy as np
import pytest

import runs


def _started(tmp_path, options, **kwargs):
    config = runs.small(tmp_path, runs.SMALL)
    words = [["train", config, "--out", tmp_path / f"out{rank}", *own] for rank, own in enumerate(options)]
    return cluster.ended(tmp_path / "said", cluster.start(tmp_path / "said", words, **kwargs))


def _refused(all_ended, *words):
    for one in all_ended:
        assert one.code == 2, one.err
        assert "does not fit" in one.err
        assert any(word in one.err for word in words), one.err


def test_another_shared_configuration(tmp_path):
    options = [runs.changes(algorithm__batch=16.0), runs.changes(algorithm__batch=32.0)]
    _refused(
        _started(tmp_path, options),
        "algorithm.batch: 16.0 here, 32.0 there",
        "algorithm.batch: 32.0 here, 16.0 there",
    )
    assert not (tmp_path / "out0").exists()


def test_a_peer_is_refused_before_its_data_is_read(tmp_path):
    missing = runs.changes(data__path=str(tmp_path / "nothing-{node}.npz"), data__sizes=None)
    config = runs.SMALL.replace("sizes = [300, 300, 300, 300]\n", "")
    (tmp_path / "a").mkdir()
    path = runs.small(tmp_path / "a", config)
    options = [missing[:1], [*missing[:1], *runs.changes(seed=8)]]
    words = [["train", path, "--out", tmp_path / "out", *own] for own in options]
    _refused(cluster.ended(tmp_path / "said", cluster.start(tmp_path / "said", words)), "seed: ")


def test_another_release(tmp_path):
    _refused(_started(tmp_path, [[], []], hook="cluster.older", victim=1), "version: ")


@pytest.mark.parametrize(("value", "key"), [({"scale": 0.5}, "difference_scale"), ({"clip": 0.25}, "difference_clip")])
def test_another_number_where_the_configuration_says_auto(tmp_path, value, key):
    """θ and C are settled by each process, after configurations were compared and before step 0."""
    options = [runs.changes(algorithm__name="privsgp-vr", algorithm__steps=3)] * 2
    _refused(_started(tmp_path, options, hook="cluster.settles", victim=1, **value), f"algorithm.{key}: ")
    assert not (tmp_path / "out0").exists()


def test_another_size_of_the_model(tmp_path):
    rng = np.random.default_rng(0)
    for node in range(4):
        classes = 3 if node < 2 else 4
        y = np.arange(40) % classes
        np.savez(tmp_path / f"site-{node}.npz", x=rng.normal(size=(40, 6)).astype(np.float32), y=y)
    text = runs.SMALL.replace("sizes = [300, 300, 300, 300]\n", f'path = "{tmp_path}/site-{{node}}.npz"\n')
    words = [["train", runs.small(tmp_path, text), "--out", tmp_path / "out"]] * 2
    all_ended = cluster.ended(tmp_path / "said", cluster.start(tmp_path / "said", words))
    _refused(all_ended, "number of weights: 21 here, 28 there", "number of weights: 28 here, 21 there")


def test_what_only_one_site_knows_may_differ(tmp_path):
    all_ended = _started(tmp_path, [[], runs.changes(name="elsewhere")])
    assert [one.code for one in all_ended] == [0, 0], all_ended[0].err + all_ended[1].err


def test_what_all_do_together_must_agree(tmp_path):
    options = [[], runs.changes(engine__evaluate_every=3)]
    _refused(_started(tmp_path, options), "engine.evaluate_every: 6 here, 3 there", "engine.evaluate_every: 3 here")


def test_a_refusal_of_one_ends_all(tmp_path):
    (tmp_path / "file").write_text("")
    config = runs.small(tmp_path, runs.SMALL)
    words = [["train", config, "--out", tmp_path / "out"], ["train", config, "--out", tmp_path / "file" / "out"]]
    first, second = cluster.ended(tmp_path / "said", cluster.start(tmp_path / "said", words))
    assert (first.code, second.code) == (2, 2)
    assert "process 1 was refused" in first.err
    assert "is not a folder" in second.err
