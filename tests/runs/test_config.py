"""Configurations: what is refused and in which words, what is filled in, and that a written one reads back the same."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privsgp.errors import Refused
from privsgp.runs import config as configs
from privsgp.runs.config import Config, differences, parse, read

MINIMAL = {"privacy": {"sigma": 0.1}}


def _refusal(values):
    with pytest.raises(Refused) as refused:
        parse(values)
    return refused.value


def test_defaults_are_those_of_the_design():
    config = parse(MINIMAL)
    assert (config.data.name, config.graph.name, config.algorithm.name) == ("digits", "exponential", "privsgp-vr")
    assert (config.privacy.delta, config.privacy.clip, config.privacy.spare) == (1e-5, 1.0, 0.02)
    assert (config.privacy.accountant, config.privacy.relation) == ("certified", "zero-out")
    assert config.seed is None
    assert config.private


def test_a_method_without_noise_needs_no_budget():
    assert not parse({"algorithm": {"name": "sgp"}}).private


floats = st.floats(1e-9, 1e9)
sections = st.fixed_dictionaries(
    {},
    optional={
        "name": st.from_regex(r"\A[a-zä0-9_][a-zä0-9_.-]{0,20}\Z"),
        "seed": st.integers(0, 2**70),
        "model": st.fixed_dictionaries({}, optional={"hidden": st.integers(1, 99) | st.lists(st.integers(1, 99))}),
        "graph": st.fixed_dictionaries({}, optional={"name": st.sampled_from(["ring", "random"])}),
        "privacy": st.fixed_dictionaries(
            {"epsilon": floats | st.lists(floats, min_size=3, max_size=3)},
            optional={"delta": st.floats(1e-12, 0.5), "clip": floats},
        ),
        "algorithm": st.fixed_dictionaries(
            {},
            optional={
                "batch": floats | st.integers(1, 10**20),
                "steps": st.integers(1, 10**9),
                "step_size": floats,
                "difference_clip": floats,
            },
        ),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "device": st.text(st.characters(exclude_categories=["Cs"])),
                "evaluate_every": st.integers(1, 9),
            },
        ),
    },
)


@given(sections)
@example({"engine": {"device": "\x7f"}})
def test_a_written_configuration_reads_back_the_same(values):
    config = parse(MINIMAL | values | {"data": {"nodes": 3}})
    again = parse(tomllib.loads(config.toml()))
    assert again == config
    assert differences(config, again) == []
    assert again.shared_hash() == config.shared_hash()


@pytest.mark.parametrize(
    ("values", "what", "remedy"),
    [
        ({"algorithm": {"step_sise": 1.0}}, "algorithm.step_sise = 1.0", "did you mean 'step_size'?"),
        ({"algorithm": {"step-size": 1.0}}, "algorithm.step-size = 1.0", "did you mean 'step_size'?"),
        ({"privvacy": {"epsilon": 1.0}}, "privvacy", "did you mean 'privacy'?"),
        ({"zzz": 1}, "zzz = 1", "known keys here: name, seed, data"),
        ({"data": 3}, "data = 3", "a section"),
    ],
)
def test_an_unknown_key_is_named_whole_with_what_was_meant(values, what, remedy):
    refused = _refusal(MINIMAL | values)
    assert what in refused.what
    assert remedy in refused.remedy


@pytest.mark.parametrize("key", sorted(configs.GONE))
def test_a_key_that_is_gone_is_refused_with_what_to_do(key):
    section, name = key.split(".")
    refused = _refusal(MINIMAL | {section: MINIMAL.get(section, {}) | {name: 1}})
    assert refused.what == f"{key} = 1"
    assert refused.remedy == configs.GONE[key][0]


@pytest.mark.parametrize(
    ("section", "key", "value", "remedy"),
    [
        ("privacy", "epsilon", float("inf"), "finite"),
        ("privacy", "epsilon", [1.0, 2.0, 0.0], "greater than 0"),
        ("privacy", "epsilon", "three", "number"),
        ("privacy", "epsilon", True, "number"),
        ("privacy", "delta", float("nan"), "than"),
        ("privacy", "spare", -0.1, "0"),
        ("privacy", "relation", "swap", "zero-out"),
        ("privacy", "accountant", "rdp", "certified"),
        ("algorithm", "batch", float("nan"), "finite"),
        ("algorithm", "steps", 2.5, "integer"),
        ("algorithm", "steps", "10", "integer"),
        ("algorithm", "step_size", 0.0, "greater than 0"),
        ("algorithm", "step_size", "theory", "a valid number"),
        ("algorithm", "steps", 0, "or 'auto', which leaves it to the planner"),
        ("algorithm", "step_size", {"schedule": "cosine", "start": 1.0}, "a valid number"),
        ("algorithm", "name", "privsgp-vrr", "did you mean 'privsgp-vr'?"),
        ("algorithm", "sampling", "fixed", "its own coin"),
        ("algorithm", "momentum", 1.0, "less than 1"),
        ("algorithm", "weights", "mine", "noise"),
        ("algorithm", "weights", [1.0, 0.0, 1.0], "greater than 0"),
        ("algorithm", "weights", [1.0, 1.0], "one per node"),
        ("algorithm", "average_share", 0.5, "take 'tail'"),
        ("algorithm", "final_mixing", -1, "0"),
        ("features", "name", "scatering", "did you mean 'scattering'?"),
        ("features", "mirror", True, "take 'scattering'"),
        ("features", "scales", 2, "2 octaves"),
        ("model", "name", "transformer", "logistic"),
        ("model", "loss", "hinge", "mse"),
        ("model", "hidden", 0, "greater than or equal to 1"),
        ("graph", "name", "star", "exponential"),
        ("data", "nodes", 0, "1"),
        ("data", "partition", "odd", "dirichlet"),
        ("data", "sizes", [10, 0, 10], "at least one"),
        ("clock", "compute", "lognormal", "clock.spread"),
        ("clock", "mean", 2.0, "clock.latency"),
        ("clock", "slowdown", 2.0, "which nodes"),
        ("clock", "stragglers", 0.1, "how much slower"),
        ("clock", "stragglers", 1.5, "less than or equal to 1"),
        ("engine", "dtype", "float16", "float32"),
    ],
)
def test_a_bad_value_is_named_with_its_key_and_what_is_right(section, key, value, remedy):
    values = {"data": {"nodes": 3}, "privacy": {}}
    values[section] = {**values.get(section, {}), key: value}
    if key != "epsilon":
        values["privacy"] |= {"epsilon": 1.0}
    refused = _refusal(values)
    assert f"{section}.{key}" in refused.what
    assert remedy in refused.remedy


@pytest.mark.parametrize(
    ("algorithm", "what"),
    [
        ({"name": "privsgp-sag", "table": "block"}, "algorithm.table = 'block'"),
        ({"table": "dense", "name": "privsgp"}, "algorithm.table = 'dense' with algorithm.name = 'privsgp'"),
        (
            {"name": "privsgp-sag", "difference_clip": 0.5},
            "algorithm.difference_clip = 0.5 with algorithm.name = 'privsgp-sag'",
        ),
        ({"table_dtype": "bfloat16", "difference_clip": 0.5}, "algorithm.table_dtype = 'bfloat16'"),
    ],
)
def test_a_table_that_would_void_the_guarantee_is_refused(algorithm, what):
    assert what in _refusal(MINIMAL | {"algorithm": algorithm}).what


def test_stragglers_are_nodes():
    refused = _refusal(MINIMAL | {"data": {"nodes": 3}, "clock": {"stragglers": [1, 3], "slowdown": 2.0}})
    assert refused.what == "clock.stragglers = [1, 3] with data.nodes = 3"
    assert "0 to 2" in refused.remedy


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"features": {"name": "scattering", "size": 3}}, "unknown key features.size = 3"),
        ({"features": {"name": "scattering", "components": 9}}, "features.components = 9"),
        ({"features": {"name": "minilm", "order": 2}}, "features.order = 2"),
        (
            {"algorithm": {"name": "local", "final_mixing": 2}},
            "algorithm.final_mixing = 2 with algorithm.name = 'local'",
        ),
        ({"algorithm": {"name": "sgp", "weights": "noise"}}, "algorithm.weights = 'noise' with algorithm.name"),
        (
            {"algorithm": {"weights": "noise"}, "privacy": {"sigma": [1.0, 0.0]}, "data": {"nodes": 2}},
            "algorithm.weights = 'noise' with algorithm.name",
        ),
    ],
)
def test_what_has_no_use_or_no_meaning_is_refused(values, what):
    assert what in _refusal(MINIMAL | values).what


def test_features_and_steps_are_part_of_what_sites_agree_on():
    plain = parse(MINIMAL)
    for values in (
        {"features": {"name": "scattering", "mirror": True}},
        {"algorithm": {"momentum": 0.5}},
        {"algorithm": {"average": "tail", "average_share": 0.2}},
        {"algorithm": {"weights": "samples", "final_mixing": 3}},
    ):
        other = parse(MINIMAL | values)
        assert other.shared_hash() != plain.shared_hash()
        assert parse(tomllib.loads(other.toml())) == other
        assert differences(plain, other)


def test_only_the_kind_that_was_tried_is_talked_about():
    assert "list" not in _refusal({"privacy": {"epsilon": -1.0}}).remedy


def test_all_mistakes_are_told_at_once():
    refused = _refusal({"privacy": {"epsilon": -1.0, "clip": 0.0}, "seed": -3})
    assert all(key in refused.what for key in ("privacy.epsilon = -1.0", "privacy.clip = 0.0", "seed = -3"))


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "-x", "a b"])
def test_a_name_is_one_plain_folder(name):
    assert f"name = {name!r}" in _refusal(MINIMAL | {"name": name}).what


def _file(tmp_path, text="[privacy]\nepsilon = 1.0\n"):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_changes_are_toml_or_else_strings(tmp_path):
    changes = ["data.nodes=2", "privacy.epsilon=[1, 2]", "graph.name=ring", 'name="x"', "model.hidden=[8, 8]"]
    config = read(_file(tmp_path), [*changes, "algorithm.step_size=1.0", "algorithm.batch = 4"])
    assert (config.data.nodes, config.privacy.epsilon, config.graph.name) == (2, [1.0, 2.0], "ring")
    assert (config.name, config.model.hidden, config.algorithm.batch) == ("x", [8, 8], 4.0)
    assert config.algorithm.step_size == 1.0


def test_the_last_change_counts(tmp_path):
    assert read(_file(tmp_path), ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize("change", ["x", "=3", ".x=3", "a..b=3", "", "privacy.epsilon.x=3"])
def test_a_change_that_is_none_is_refused(tmp_path, change):
    with pytest.raises(Refused) as refused:
        read(_file(tmp_path), [change])
    assert f"--set {change}" in refused.value.what


def test_differences_are_named_with_both_values_and_free_keys_are_free():
    old = parse(MINIMAL | {"algorithm": {"batch": 8}})
    free = {"name": "other", "engine": {"device": "cuda", "evaluate_every": 3, "checkpoint_every": 2}}
    assert differences(old, parse(MINIMAL | {"algorithm": {"batch": 8}} | free)) == []
    new = parse({"privacy": {"epsilon": 2.0}, "algorithm": {"batch": 9}, "engine": {"dtype": "float64"}})
    assert set(differences(old, new)) == {
        "privacy.epsilon: None → 2.0",
        "privacy.sigma: 0.1 → None",
        "algorithm.batch: 8.0 → 9.0",
        "engine.dtype: float32 → float64",
    }


def test_the_shared_part_knows_no_site():
    base = parse(MINIMAL)
    sites = [{"name": "b"}, {"data": {"path": "x-{node}.npz"}}, {"engine": {"device": "cpu", "evaluate_every": 2}}]
    assert {parse(MINIMAL | site).shared_hash() for site in sites} == {base.shared_hash()}
    others = [{"seed": 1}, {"data": {"nodes": 3}}, {"engine": {"dtype": "float64"}}, {"graph": {"name": "ring"}}]
    hashes = {parse(MINIMAL | other).shared_hash() for other in others}
    assert len(hashes | {base.shared_hash()}) == len(others) + 1


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        parse(MINIMAL).seed = 3
    assert isinstance(parse(MINIMAL), Config)


def test_set_without_a_value_takes_the_key_out(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[privacy]\nepsilon = 1.0\n")
    changed = configs.read(path, ["privacy.epsilon=", "privacy.sigma=0.1", "engine.device="])
    assert (changed.privacy.epsilon, changed.privacy.sigma, changed.engine.device) == (None, 0.1, "auto")


@pytest.mark.parametrize("clip", [1e-320, 1e-40, 1e30])
def test_a_clip_that_floats_cannot_be_clipped_to_is_refused(clip):
    assert "privacy.clip" in _refusal({"privacy": {"sigma": 0.1, "clip": clip}}).what
