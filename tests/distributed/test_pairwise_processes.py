"""Noise that nodes of different processes share: the same in a simulation, agreed on by keys where it is secret."""

from __future__ import annotations

import json

import cluster
import pytest
from safetensors.torch import load_file

import runs

SHARED = """
name = "shared"
seed = 5
[data]
nodes = 6
sizes = [120, 90, 60, 130, 200, 40]
[model]
name = "logistic"
[graph]
name = "exponential"
[privacy]
sigma = [0.3, 0.3, 0.2, 0.3, 0.4, 0.3]
noise = "pairwise"
honest = 4
[algorithm]
name = "privsgp"
steps = 24
step_size = 0.3
weights = "noise"
[engine]
device = "cpu"
evaluate_every = 12
checkpoint_every = 5
"""


@pytest.mark.parametrize("processes", [2, 6])
def test_a_simulation_gives_the_bytes_that_one_process_gives(tmp_path, processes):
    config = runs.small(tmp_path, SHARED)
    alone = runs.train(config, tmp_path / "one")
    summary = cluster.train(tmp_path / "said", config, tmp_path / "many", processes)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "many")]
    assert models[0] == models[1]
    assert summary["pairwise"] == alone["pairwise"]
    assert summary["trust"] == "honest sites"


def test_secret_noise_of_pairs_cancels_between_processes(tmp_path):
    """With noise that drowns all else, the average model is as long as the noise that is left in it."""
    text = SHARED.replace("seed = 5\n", "").replace("sizes = [120, 90, 60, 130, 200, 40]\n", "")
    text = text.replace("[0.3, 0.3, 0.2, 0.3, 0.4, 0.3]", "100.0").replace("honest = 4", "honest = 6")
    config = runs.small(tmp_path, text)
    shared = cluster.train(tmp_path / "said", config, tmp_path / "pairwise", 3)
    cluster.train(
        tmp_path / "said2", config, tmp_path / "independent", 3,
        *["--set=privacy.noise=independent", "--set=privacy.honest="],
    )  # fmt: skip
    lengths = [_length(tmp_path / name) for name in ("pairwise", "independent")]
    left = shared["pairwise"]["average_sigma"] / (100.0 / 6**0.5)
    assert left == pytest.approx((2 / 7) ** 0.5, rel=1e-3)
    assert lengths[0] / lengths[1] == pytest.approx(left, rel=0.2)  # 2.4 if they did not cancel
    assert not shared["simulation"]
    assert "first process passed on the public keys" in (tmp_path / "pairwise" / "report.html").read_text()
    header = json.loads((tmp_path / "pairwise" / "ledger" / "node-0.jsonl").read_text().split("\n")[0])
    assert header["mechanism"]["honest"] == 6


def _length(folder):
    return sum(float(t.double().square().sum()) for t in load_file(folder / "model.safetensors").values()) ** 0.5


SECRET = SHARED.replace("seed = 5\n", "").replace("sizes = [120, 90, 60, 130, 200, 40]\n", "").replace("= 24", "= 12")


def test_a_peer_that_puts_its_own_key_in_anothers_place_is_noticed(tmp_path):
    config, key = runs.small(tmp_path, SECRET), r'"[0-9a-f]{64}"'
    words = [["train", config, "--out", tmp_path / f"out{rank}"] for rank in range(3)]
    told = {"liar": 0, "about": 1, "pattern": rf"\[{key}, {key}\]", "word": json.dumps(["ab" * 32, "cd" * 32])}
    said = tmp_path / "said"
    all_ended = cluster.ended(said, cluster.start(said, words, "hostile.say", patience=6.0, **told))
    assert [one.code for one in all_ended][1] == 2
    assert "changed in the meeting place" in all_ended[1].err
    assert not any(list((tmp_path / f"out{rank}").glob("ledger/*")) for rank in range(3))


def test_processes_that_start_again_share_other_secrets_and_pay_for_what_they_repeat(tmp_path):
    config, out, said = runs.small(tmp_path, SECRET), tmp_path / "out", tmp_path / "said"
    words = [["train", config, "--out", out]] * 3
    ended = cluster.ended(said, cluster.start(said, words, "cluster.die", 0, victim=1, moments=40))
    assert ended[1].code != 0
    again = cluster.ended(said, cluster.start(said, words, restart=1))
    assert [one.code for one in again] == [0, 0, 0], "\n".join(one.err for one in again)
    transcripts = {one.err.split("transcript ")[1].split()[0] for one in again if "transcript " in one.err}
    assert len(transcripts) == 1
    assert not any(transcript in one.err for one in ended for transcript in transcripts)
    for node in range(6):
        sent = [(step, attempt) for step, attempt, _ in runs.sent(out, node)]
        assert len(set(sent)) == len(sent) >= 12


def test_noise_that_is_proposed_and_worth_too_little_is_refused(tmp_path):
    config = runs.small(tmp_path, SECRET)
    words = [["train", config, "--out", tmp_path / f"out{rank}"] for rank in range(2)]
    proposal = json.dumps({"own": [1e-6] * 6, "pair": 1e-6})
    told = {"liar": 0, "about": 0, "pattern": r'\{"own": .*', "word": proposal}
    said = tmp_path / "said"
    all_ended = cluster.ended(said, cluster.start(said, words, "hostile.say", patience=6.0, **told))
    assert all_ended[1].code == 2
    assert "process 0 proposes is worth" in all_ended[1].err
    assert not any(list((tmp_path / f"out{rank}").glob("ledger/*")) for rank in range(2))
