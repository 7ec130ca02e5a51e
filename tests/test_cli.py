"""The command line: what it refuses and how, where its words go, and what a script can rely on."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import runs
from privsgp import __version__, cli, cli_data
from privsgp.accounting import accountant, calibration, ledger
from privsgp.accounting.compound import PersonLevel
from privsgp.accounting.mechanisms import Saga, SampledMean
from privsgp.algorithms import ALGORITHMS, Settings
from privsgp.errors import Refused
from privsgp.sites.identity import Site

BAD = {
    "algorithm.bacth=3": ("algorithm.bacth = 3", "did you mean 'batch'"),
    "algoritm.batch=3": ("algoritm", "did you mean 'algorithm'"),
    "privacy.epsilon=0": ("privacy.epsilon = 0", "greater than 0"),
    "privacy.epsilon=-1.5": ("privacy.epsilon = -1.5", "greater than 0"),
    "privacy.epsilon=nan": ("privacy.epsilon = nan", "finite"),
    "privacy.delta=[0.1]": ("privacy.delta = [0.1] with data.nodes = 4", "one per node"),
    "privacy.epsilon=3": ("privacy.epsilon = 3.0 with privacy.sigma = 0.05", "or sigma"),
    "privacy.delta=1": ("privacy.delta = 1", "less than 1"),
    "privacy.delta=0": ("privacy.delta = 0", "greater than 0"),
    "privacy.sigma=[0.1, 0.2, 0.3]": ("privacy.sigma = [0.1, 0.2, 0.3] with data.nodes = 4", "one per node"),
    "privacy.sigma=-0.1": ("privacy.sigma = -0.1", "0"),
    "privacy.clip=-1": ("privacy.clip = -1", "greater than 0"),
    "privacy.accountant=published": ("privacy.accountant = 'published' without privacy.epsilon", "give the ε"),
    "data.sizes=[10, 20]": ("data.sizes has 2 entries for data.nodes = 4", "one size per node"),
    "data.sizes=[1, 1, 1, 9999]": ("data.sizes sum to 10002", "at most"),
    "data.name=imagenet": ("data.name = 'imagenet'", "digits"),
    "data.name=none.npz": ("none.npz", ".npz"),
    "data.nodes=0": ("data.nodes = 0", "1"),
    "algorithm.batch=0": ("algorithm.batch = 0", "greater than 0"),
    "algorithm.batch=301": ("algorithm.batch = 301", "at most 300"),
    "algorithm.steps=0": ("algorithm.steps = 0", "1"),
    "algorithm.name=adam": ("algorithm.name = 'adam'", "privsgp-vr"),
    "algorithm.difference_clip=0.5": ("algorithm.difference_clip = 0.5", "privsgp-vr"),
    "graph.name=star": ("graph.name = 'star'", "exponential"),
    "model.name=transformer": ("model.name = 'transformer'", "logistic"),
    "model.name=module": ("model.name = 'module'", "logistic"),
    "engine.device=abacus": ("engine.device = 'abacus' is not on this machine\n", "take one of auto, cpu"),
    "engine.device=meta": ("engine.device = 'meta' is not on this machine\n", "take one of auto, cpu"),
    "engine.device=cuda:99": ("engine.device = 'cuda:99' is not on this machine\n", "take one of auto, cpu"),
    "seed=-1": ("seed = -1", "0"),
    "nonsense": ("--set nonsense", "KEY=VALUE"),
    "data.text={ colum = 'x' }": ("unknown key data.text.colum = 'x'", "did you mean 'column'"),
    "data.images={ sise = 3 }": ("unknown key data.images.sise = 3", "did you mean 'size'"),
    "algorithm.step_size={ schedule = 'linear', start = 1.0 }": ("algorithm.step_size = {", "valid number"),
}


def _refused(ran, *words):
    assert ran.code == 2, ran
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert "→" in ran.err
    for word in words:
        assert word in ran.err


@pytest.mark.parametrize("change", BAD)
def test_bad_input_names_key_value_and_remedy_and_leaves_nothing_behind(tmp_path, change):
    out = tmp_path / "runs" / "x"
    _refused(runs.command("train", runs.small(tmp_path), "--out", out, "--json", "--set", change), *BAD[change])
    assert not (tmp_path / "runs").exists()


def test_a_budget_for_too_few_nodes(tmp_path):
    config = runs.small(tmp_path, runs.SMALL.replace("sigma = 0.05", "epsilon = [1, 2]"))
    _refused(runs.command("train", config), "privacy.epsilon = [1.0, 2.0] with data.nodes = 4", "one per node")


def test_neither_budget_nor_noise(tmp_path):
    config = runs.small(tmp_path, runs.SMALL.replace("sigma = 0.05", ""))
    _refused(
        runs.command("train", config, "--out", tmp_path / "x"), "without privacy.epsilon", "give privacy.epsilon = 3.0"
    )
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("text", ["[privacy", "\xff\xfe", "seed = 1\nseed = 2"])
def test_a_config_that_is_not_toml(tmp_path, text):
    config = tmp_path / "run.toml"
    config.write_bytes(text.encode("latin-1"))
    _refused(runs.command("train", config), "run.toml is not TOML")


def test_a_config_that_is_not_there(tmp_path):
    _refused(runs.command("train", tmp_path / "no.toml"), "no.toml", "No such file")
    _refused(runs.command("train", tmp_path), str(tmp_path), "Is a directory")


def test_a_missing_data_file_is_named_with_where_it_was_looked_for_and_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv("PRIVSGP_DATA", raising=False)
    arguments = ("train", runs.small(tmp_path), "--out", tmp_path / "x", "--set", "data.name=mnist")
    _refused(runs.command(*arguments), "train-images-idx3-ubyte", "--data-dir", "PRIVSGP_DATA")
    ran = runs.command(*arguments, "--data-dir", tmp_path / "here")
    _refused(ran, "train-images-idx3-ubyte", str(tmp_path / "here" / "MNIST" / "raw"), "idx files of MNIST")
    assert not (tmp_path / "x").exists()


def _npz(path, **arrays):
    x = np.linspace(-1, 1, 120, dtype=np.float32).reshape(40, 3)
    np.savez(path, **({"x": x, "y": np.arange(40) % 2, "x_test": x[:10], "y_test": np.arange(10) % 2} | arrays))
    return ("--set", f"data.name={path}", *runs.changes(data__sizes=[10] * 4, algorithm__batch=5))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.full((40, 3), np.nan)}, ("x[0, 0] = nan is not finite", "120 such values")),
        ({"y": np.arange(40) % 2 * 5}, ("y", "5", "classes")),
        ({"y": np.arange(40) % 2 - 1}, ("-1", "from 0")),
        ({"y": np.arange(39)}, ("40 rows", "39")),
        ({"x_test": np.zeros((10, 4))}, ("shape (3,)", "(4,)")),
    ],
)
def test_data_that_cannot_be_learnt_from(tmp_path, arrays, words):
    options = _npz(tmp_path / "d.npz", **arrays)
    _refused(runs.command("train", runs.small(tmp_path), "--out", tmp_path / "x", *options), "d.npz", *words)
    assert not (tmp_path / "x").exists()


def test_an_out_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "x"):
        _refused(runs.command("train", runs.small(tmp_path), "--out", out), "file is not a folder", "--out")
    assert (tmp_path / "file").read_text() == "mine"


SUMMARY = {
    "algorithm": str, "nodes": int, "steps": int, "dim": int, "test_accuracy": float, "worst_node_accuracy": float,
    "train_loss": float, "consensus_error": float, "epsilon_spent": list, "epsilon_nominal": type(None), "delta": list,
    "relation": str, "noise": str, "accountant": str, "seconds": float, "bytes_sent": int,
}  # fmt: skip


def test_json_is_one_object_on_stdout_and_the_summary_file(tmp_path):
    ran = runs.command("train", runs.small(tmp_path), "--out", tmp_path / "x", "--json")
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 1
    summary = json.loads(ran.out)
    assert summary == json.loads((tmp_path / "x" / "summary.json").read_text())
    assert {key: type(summary[key]) for key in SUMMARY} == SUMMARY
    assert "simulation, not private" in ran.err
    assert (summary["algorithm"], summary["nodes"], summary["steps"], summary["dim"]) == ("privsgp", 4, 30, 650)
    assert 0.5 < summary["worst_node_accuracy"] <= summary["test_accuracy"] + 0.1 <= 1.1
    assert len(summary["epsilon_spent"]) == len(summary["delta"]) == 4
    assert all(epsilon > 0 for epsilon in summary["epsilon_spent"])
    assert summary["bytes_sent"] == 30 * 4 * (650 * 4 + 8)


def test_a_table_on_stdout_without_json(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    ran = runs.command("train", runs.small(tmp_path), "--out", tmp_path / "x", "--set", "algorithm.name=sgp")
    assert ran.code == 0
    for word in ("sgp, exponential graph, 4 sites, 30 steps, d = 650", "accuracy", "none: this method adds no noise"):
        assert word in ran.out
    assert "does not clip" in ran.err


def test_a_first_table_is_announced_before_it_is_filled(tmp_path):
    changes = runs.changes(algorithm__name="privsgp-vr", algorithm__steps=2)
    ran = runs.command("train", runs.small(tmp_path), "--out", tmp_path / "x", *changes)
    assert "the gradients of 1,200 samples at x⁰ come first" in ran.err


@pytest.mark.parametrize("seed", ["7", ""])
def test_how_fast_a_private_run_was_is_not_said(tmp_path, monkeypatch, seed):
    monkeypatch.setenv("COLUMNS", "200")
    ran = runs.command("train", runs.small(tmp_path), "--out", tmp_path / "x", f"--set=seed={seed}")
    seconds = json.loads((tmp_path / "x" / "summary.json").read_text())["seconds"]
    assert seed or seconds == round(seconds)
    assert "virtual s" not in ran.out  # no clock was set: a step would take a second
    assert "None" not in ran.out


def test_a_summary_says_the_loss_once_and_virtual_seconds_where_a_clock_was_set(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    changes = runs.changes(algorithm__steps=2, clock__latency=1.5)
    ran = runs.command("train", runs.small(tmp_path), "--out", tmp_path / "x", *changes)
    assert "; 5 virtual s" in ran.out
    assert "log loss" in ran.out
    assert "test loss" not in ran.out  # it is the log loss


def test_the_default_folder_is_below_runs(tmp_path, monkeypatch):
    config = runs.small(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert runs.command("train", config, "--set", "name=mine", *runs.changes(algorithm__steps=2)).code == 0
    assert (tmp_path / "runs" / "mine" / "summary.json").exists()


@pytest.mark.parametrize(("algorithm", "what"), [("sgp", "the test loss"), ("privsgp", "the message of node 0")])
def test_a_run_that_diverges_says_so_and_leaves_no_model(tmp_path, algorithm, what):
    changes = runs.changes(algorithm__name=algorithm, algorithm__step_size=1e38, privacy__sigma=1e3)
    ran = runs.command("train", runs.small(tmp_path), "--out", tmp_path / "x", "--json", *changes)
    assert (ran.code, ran.out) == (4, "")
    assert f"{what} is not finite" in ran.err
    assert "algorithm.step_size" in ran.err
    assert "Traceback" not in ran.err
    assert not {"summary.json", "model.safetensors"} & {path.name for path in (tmp_path / "x").iterdir()}


def test_a_full_disk_keeps_the_last_checkpoint_and_says_what_to_do(tmp_path, monkeypatch):
    config, out = runs.small(tmp_path), tmp_path / "x"
    whole = runs.train(config, tmp_path / "whole")
    save = save_file

    def full(tensors, temporary, metadata):
        if "progress" in metadata and json.loads(metadata["progress"])["step"] > 14:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary))
        save(tensors, temporary, metadata)

    monkeypatch.setattr("safetensors.torch.save_file", full)
    ran = runs.command("train", config, "--out", out, "--json")
    assert (ran.code, ran.out) == (6, "")
    assert "No space left on device" in ran.err
    assert "--resume" in ran.err
    assert [path.name for path in (out / "private").iterdir()] == ["checkpoint.safetensors"]
    assert torch.isfinite(load_file(out / "private" / "checkpoint.safetensors")["x"]).all()
    monkeypatch.undo()
    assert runs.train(config, out, "--resume")["test_loss"] == whole["test_loss"]
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("every", "words"), [(7, "a checkpoint is kept"), (0, "there is no checkpoint")])
def test_ctrl_c_says_what_is_there_to_go_on_with(tmp_path, monkeypatch, every, words):
    @contextlib.contextmanager
    def stopping(_steps):
        yield lambda k, _row: os.kill(os.getpid(), signal.SIGINT) if k == 10 else None

    arguments = ("train", runs.small(tmp_path), "--out", tmp_path / "x", f"--set=engine.checkpoint_every={every}")
    monkeypatch.setattr(cli, "bar", stopping)
    ran = runs.command(*arguments)
    assert ran.code == 130
    assert words in ran.err
    assert (tmp_path / "x" / "private" / "checkpoint.safetensors").exists() == (every > 0)
    monkeypatch.undo()
    assert runs.command(*arguments, "--resume").code == 0
    assert runs.charged(tmp_path / "x") == [30] * 4


@pytest.fixture
def stopped_at(monkeypatch):
    """Return a function after which Ctrl-C comes once so much is done."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def at(count):
        @contextlib.contextmanager
        def stage(_words, _total):
            yield lambda done: os.kill(os.getpid(), signal.SIGINT) if done == count else None

        monkeypatch.setattr(cli.terminal, "stage", stage)

    yield at
    signal.signal(signal.SIGINT, before)


AUDITED = ("--canaries=8", "--observations=600", "--json", "--set=algorithm.steps=20")  # 4 runs


@pytest.mark.parametrize("count", [30, 40])  # within a run, in its last step
def test_an_audit_that_is_stopped_says_so_and_judges_nothing(tmp_path, stopped_at, count):
    stopped_at(count)
    ran = runs.command("audit", runs.small(tmp_path), *AUDITED)
    assert (ran.code, ran.out) == (130, "")
    assert "audit stopped" in ran.err
    assert "checkpoint" not in ran.err


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "share of the disk is full"),
        (errno.EROFS, "mounted read-only"), (errno.EMFILE, "ulimit -n"), (errno.ENFILE, "are open on this machine"),
        (errno.EACCES, "change the permissions"), (errno.EPERM, "change the permissions"),
        (errno.ENOENT, "name a file or folder that exists"), (errno.EIO, "find out why the system refused it"),
        (None, "find out why the system refused it"),
    ],
)  # fmt: skip
def test_each_error_of_the_system_has_its_own_advice(tmp_path, monkeypatch, number, remedy):
    error = OSError("odd") if number is None else OSError(number, os.strerror(number), "x")
    monkeypatch.setattr(cli_data, "configured", mock.Mock(side_effect=error))
    ran = runs.command("train", runs.small(tmp_path))
    assert ran.code == 6
    assert remedy in ran.err
    assert "run the same command again" in ran.err
    assert ("disk is full" in ran.err) == (number in (errno.ENOSPC, errno.EDQUOT))
    other = runs.command("plan", runs.small(tmp_path))
    assert (other.code, "--resume" in ran.err, "--resume" in other.err) == (6, True, False)


FRESH = """
import json, sys
from privsgp.cli import main

for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        print(json.dumps([arguments, end.code, "torch" in sys.modules]))
"""


def test_the_budget_book_is_shown_without_torch():
    ran = subprocess.run([sys.executable, "-c", FRESH, '[["budget"]]'], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout.splitlines()[-1]) == [["budget"], 0, False]


def _expired_study(folder):
    config, study, cards = folder / "proposed.toml", folder / "expired.study", []
    config.write_text(runs.SMALL.replace("nodes = 4", "nodes = 2\nclasses = 10").replace(", 300, 300]", "]"))
    for name in ("a", "b"):
        Site.create(folder / name, name, address=f"{name}.example:4433").card.write(folder / f"{name}.card")
        cards += ["--site", folder / f"{name}.card"]
    ran = runs.command("agree", "propose", config, *cards, "-o", study, "--days=-1")
    assert ran.code == 0, ran.err
    return study


def test_refusals_come_before_torch_is_imported(tmp_path):
    config, more = runs.small(tmp_path), ("--set=algorithm.steps=2", "--out", tmp_path / "run")
    (tmp_path / "sites.toml").write_text(
        runs.SMALL.replace("[data]", '[data]\npath = "{node}.npz"').replace("sizes", "#")
    )
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    gone, held = tmp_path / "gone", tmp_path / "held"
    held.mkdir()
    (held / "config.toml").touch()
    late = Site.create(tmp_path / "late", "late", address="late.example:4433")
    late.rotate(days=-0.1)
    expired, stranger = _expired_study(tmp_path), Site.create(tmp_path / "d", "d", address="d.example:4433")
    refused = [
        ("train", gone), ("train", config, "--none-such"), ("none-such",), ("train", tmp_path / "sites.toml"),
        *(("train", config, f"--set={change}") for change in ("data.foo=3", "algorithm.steps=-1", "graph.name=x")),
        ("plan", gone), ("plan",), ("audit", config, "--set=privacy.clip=0"),
        ("compare", gone, "--algorithms=privsgp"), ("reproduce", "x"),
        ("agree", "propose", gone, "--site", gone, "-o", gone),
        ("data", "schema", gone, "--target=y"), ("data", "check", gone, tmp_path / "a.csv"), ("init",),
        ("init", "--public", tmp_path / "a.csv", "--target=z", "--sites=a", "--path={site}.csv", "--epsilon=1"),
        ("join", config, "--data", gone), ("join", config, "--data", config, "--home", gone), ("doctor", gone),
        ("report", gone), ("ledger", gone), ("ledger", tmp_path), ("predict", gone, gone), ("evaluate", gone, gone),
        ("train", config, "--out", held),
        ("train", config, "--set=seed=", "--resume", "--out", gone), ("audit", config, "--confidence=2"),
        ("account", "--algorithm=nope", "--samples=9", "--batch=1", "--steps=9", "--sigma=1"),
        ("join", config, "--data", config, "--home", late.home),
        ("join", expired, "--data", config, "--home", tmp_path / "a", "--out", gone),
        ("join", expired, "--data", config, "--home", stranger.home),
        ("join", config, "--data", config, "--home", stranger.home),
    ]  # fmt: skip
    asked = json.dumps([list(map(str, one)) for one in [*refused, ("train", config, *more)]])
    ran = subprocess.run(
        [sys.executable, "-c", FRESH, asked], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert ran.returncode == 0, ran.stderr
    *ends, last = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('[["')]
    assert [end for end in ends if end[1:] != [2, False]] == []
    assert len(ends) == len(refused)
    assert last[1:] == [0, True]  # what was imported before torch works with it


def test_help_and_a_real_process():
    command = [sys.executable, "-m", "privsgp", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "100"})
    assert (ran.returncode, ran.stderr) == (0, "")
    for name in ("train", "account", "calibrate"):
        assert name in ran.stdout


@pytest.mark.parametrize("count", [0, -3])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("audit", "run.toml"), "--observations"),
    ],
)
def test_a_count_below_one_is_refused_before_anything_is_made(tmp_path, monkeypatch, command, option, count):
    monkeypatch.chdir(tmp_path)
    runs.small(tmp_path, runs.SMALL.replace("sigma = 0.05", "epsilon = 3.0"))
    _refused(runs.command(*command, option, count), f"{option} {count} is below 1\n", "take at least 1")
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


@pytest.mark.parametrize("arguments", [("trian",), ("train",), ("train", "x.toml", "--frobnicate")])
def test_what_is_no_command_is_refused(arguments):
    ran = runs.command(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err


def test_a_delta_that_allows_to_publish_a_record_gets_a_warning(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(runs.SMALL)
    ran = runs.command("train", config, "--out", tmp_path / "r", "--set", "privacy.delta=0.01")
    assert ran.code == 0
    assert "privacy.delta = 0.01 is not below 1/J of node 0 (300 samples; 4 such nodes)" in ran.err
    assert "not below" not in runs.command("train", config, "--out", tmp_path / "s").err


@pytest.mark.parametrize("options", [("account", "--sigma=0.3"), ("calibrate", "--epsilon=8")])
def test_dp_srm_is_counted_for_the_nodes_that_are_seen_as_a_sum(options):
    arguments = (*options, "--algorithm=dp-srm", "--samples=50", "--batch=50", "--steps=4", "--json")
    summed = json.loads(runs.command(*arguments, "--nodes=4").out)
    alone = json.loads(runs.command(*arguments, "--set=algorithm.trust=per-node").out)
    assert summed["trust"] == "secure aggregation"
    assert "trust" not in alone
    assert summed["epsilon"] < alone["epsilon"] or summed["sigma"] < alone["sigma"]


@pytest.mark.parametrize(
    ("options", "key"), [(("account", "--sigma=0.3"), "epsilon"), (("calibrate", "--epsilon=8"), "sigma")]
)
def test_answers_have_six_digits_and_promise_no_more_than_was_counted(options, key):
    arguments = (*options, "--algorithm=privsgp", "--samples=50", "--batch=5", "--steps=4")
    told = json.loads(runs.command(*arguments, "--json").out)[key]
    lines = [line.split() for line in runs.command(*arguments).out.splitlines()]
    (printed,) = (line[line.index(key) + 1 :] for line in lines if key in line)
    digits = next(word for word in printed if word[0].isdigit())
    assert len(digits.replace(".", "").lstrip("0")) <= 6
    assert told <= float(digits) <= told * (1 + 1e-5)


@pytest.mark.parametrize("asked", ["0.1", "10", "100000"])
def test_what_was_asked_for_is_printed_as_it_was(asked):
    ran = runs.command(
        "calibrate", f"--epsilon={asked}", "--algorithm=privsgp", "--samples=50", "--batch=5", "--steps=4"
    )
    assert [asked] == [line.split()[3] for line in ran.out.splitlines() if "target_epsilon" in line]


def test_account_and_calibrate_count_a_weight_of_differences():
    node = ("--samples=1000", "--batch=10", "--steps=100")
    plain, scaled, auto = (
        json.loads(runs.command("calibrate", *node, "--epsilon=2", "--json", *own).out)
        for own in ((), ("--set=algorithm.difference_scale=0.3",), ("--set=algorithm.difference_scale=auto",))
    )
    assert plain["sigma"] > 1.5 * scaled["sigma"]
    assert "difference_scale" not in plain
    assert scaled["difference_scale"] == 0.3
    assert auto["sigma"] < scaled["sigma"]
    assert 0.01 < auto["difference_scale"] < 0.3
    scale = "--set=algorithm.difference_scale"
    again = json.loads(runs.command("account", *node, f"--sigma={auto['sigma']}", f"{scale}=auto", "--json").out)
    assert again["difference_scale"] == pytest.approx(auto["difference_scale"], rel=0.1)
    assert again["epsilon"] == pytest.approx(auto["epsilon"], rel=0.01)
    for value, more, words in (
        ("0.5", ("--algorithm=privsgp",), ("difference_scale",)),
        ("much", (), ("difference_scale",)),
        ("1.5", (), ("difference_scale", "less than or equal to 1")),
    ):
        _refused(runs.command("account", *node, "--sigma=1", f"{scale}={value}", *more), *words)


def test_account_tells_a_runs_epsilon_from_what_its_ledger_has(tmp_path):
    runs.train(runs.small(tmp_path), tmp_path / "x")
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    m = ledger.read(tmp_path / "x" / "ledger" / "node-0.jsonl")[0].header.mechanism
    given = {key: m[key] for key in ("sigma", "samples", "batch", "clip", "kappa", "coordinates")}
    given |= {"algorithm": summary["algorithm"], "steps": summary["releases"][0], "delta": summary["delta"][0]}
    ran = runs.command("account", *(f"--{key}={value}" for key, value in given.items()), "--json")
    assert m["kappa"] > 0
    assert m["coordinates"] == 650
    assert json.loads(ran.out)["epsilon"] == pytest.approx(summary["epsilon_spent"][0], rel=1e-12)


def test_accounting_counts_what_the_algorithms_declare():
    values = {"batch": 5, "samples": 50, "kappa": 2**-12}
    for name in (a.name for a in ALGORITHMS.values() if a.private):
        numbers = ("--samples=50", "--batch=5", "--steps=4", "--sigma=0.2", "--kappa=0.000244140625", "--json")
        told = json.loads(runs.command("account", *numbers, f"--algorithm={name}").out)
        options = {"difference_scale": 1.0} if "difference_scale" in ALGORITHMS[name].Options.model_fields else {}
        settings = Settings(batch=5, trust=ALGORITHMS[name].trust, options=ALGORITHMS[name].Options(**options))
        mechanism = ALGORITHMS[name].mechanism(settings, **values | {"sigma": 0.2})
        assert told["epsilon"] == pytest.approx(accountant.epsilon(mechanism, 4, 1e-5).epsilon, rel=1e-12)


PAIRWISE = ["--nodes", 50, "--set", "privacy.noise=pairwise", "--set", "privacy.honest=38", "--algorithm", "privsgp"]
COUNTED = ["--samples", 1200, "--batch", 240, "--steps", 600, "--json"]


def test_calibrate_and_account_tell_what_shared_noise_is_made_of_and_whom_it_trusts():
    found = json.loads(runs.command("calibrate", *COUNTED, "--epsilon", 1, *PAIRWISE).out)
    assert found["sigma_effective"] == pytest.approx(found["sigma"])
    assert found["average_sigma"] * 50**0.5 == pytest.approx(0.2265 * found["sigma"], rel=1e-3)
    assert found["message_sigma"] == pytest.approx(1.601 * found["sigma"], rel=1e-3)
    curve = dict(found["curve"])
    assert curve[38] == pytest.approx(found["epsilon"])
    assert curve[1] > curve[2] > curve[38] > curve[50]
    back = json.loads(runs.command("account", *COUNTED, "--sigma", found["sigma"], *PAIRWISE).out)
    assert back["epsilon"] == pytest.approx(found["epsilon"], rel=1e-6)
    assert (back["trust"], back["honest"]) == ("honest sites", 38)


def test_calibrate_takes_the_weight_that_a_run_takes_where_noise_is_shared():
    node = ["--samples", 1000, "--batch", 10, "--steps", 100, "--set=algorithm.difference_scale=auto", "--json"]
    shared = ["--nodes=4", "--set=privacy.noise=pairwise", "--set=privacy.honest=4"]
    alone, found = (json.loads(runs.command("calibrate", *node, "--epsilon", 2, *own).out) for own in ([], shared))
    m = Saga(sigma=0.0, clip=1.0, batch=10, samples=1000, difference_clip=1.0)
    largest = calibration.largest(m, 100, 2.0, 1e-5, remaining=0.4**0.5)
    assert found["difference_scale"] == largest > alone["difference_scale"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nodes=50", "--set=privacy.noise=pairwise", "--algorithm=ldp-svrg"], "there shared noise cancels"),
        (["--set=privacy.noise=pairwise"], "take 2 to 2"),
        (["--set=privacy.honest=3"], "privacy.honest"),
        ([*PAIRWISE[:-4], "--set=privacy.honest=51", "--algorithm=privsgp"], "take 2 to 50"),
        (["--algorithm=sgp"], "take one that adds noise"),
        ([*PAIRWISE, "--set=privacy.pair_ratio=1e5", "--coordinates=1000"], "the ratio may be at most 8"),
    ],
)
def test_what_has_no_shared_noise_or_no_epsilon_is_refused(options, said):
    ran = runs.command("calibrate", *COUNTED, "--epsilon", 1, *options)
    assert ran.code == 2
    assert said in " ".join(ran.err.split())


def test_account_shows_what_epsilon_rests_on():
    node = ("--algorithm=privsgp", "--samples=1200", "--batch=24", "--steps=50", "--sigma=0.05")
    words = " ".join(runs.command("account", *node).out.split())
    assert "neighbours differ in one sample of this node" in words
    assert "own secret coin with probability 0.02" in words


def test_account_counts_persons_as_a_run_does():
    persons = ["--set=data.person=id", "--set=data.rows_per_person=4", "--set=privacy.sites_per_person=2", "--nodes=2"]
    found = json.loads(runs.command("account", *COUNTED, "--sigma=0.1", "--algorithm=privsgp", *persons).out)
    m = PersonLevel(SampledMean(sigma=0.1, clip=1.0, batch=240, samples=1200), 4, 2)
    assert found["unit"] == m.unit
    assert found["epsilon"] == accountant.epsilon(m, 600, 1e-5).epsilon
    assert dict(found["by_sites"])[2] == found["epsilon"] > dict(found["by_sites"])[1]


def test_a_missing_number_is_not_the_next_ones():
    """ε of three sites, of which one was left out, would else be those of two."""
    assert cli_data.numbers("epsilon", "1, 2,") == [1.0, 2.0]
    with pytest.raises(Refused, match="--epsilon 1,,2"):
        cli_data.numbers("epsilon", "1,,2")


def test_it_tells_its_version():
    ran = runs.command("--version")
    assert (ran.code, ran.out) == (0, f"privsgp {__version__}\n")


def test_a_shell_can_complete_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "privsgp"],
        env=os.environ | {"_PYTHON _M PRIVSGP_COMPLETE": "", "_PYTHON_M_PRIVSGP_COMPLETE": "complete_bash",
                          "COMP_WORDS": "privsgp eval", "COMP_CWORD": "1"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "evaluate" in done.stdout
