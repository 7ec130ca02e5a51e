"""Agreements: canonical, checked by everybody anew, and against the site's own policy before anything is signed."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import hashlib
import json

import pytest
from consortium import RUN, Consortium
from hypothesis import given
from hypothesis import strategies as st

from privsgp import data
from privsgp.accounting import calibration, policy
from privsgp.engine.budget_guard import BudgetGuard
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.runs import config as configs
from privsgp.sites.agreement import Agreement, propose
from privsgp.sites.canonical import canonical
from privsgp.sites.doctor import examine
from privsgp.sites.run import check_policy
from privsgp.sites.study import Limits
from runs import command

pytestmark = pytest.mark.usefixtures("entered")

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_canonical_json_is_read_back_and_written_alike(value):
    text = canonical(value)
    assert json.loads(text) == value
    assert canonical(json.loads(text)) == text


def test_a_study_comes_back_with_the_same_run_id(three):
    again = Agreement.read(three.study)
    assert again.run == three.agreement.run
    assert again.values == three.agreement.values


def test_every_value_is_in_the_run_id(three):
    assert canonical(three.agreement.values) + b"\n" == three.study.read_bytes()
    assert three.agreement.run == hashlib.sha256(three.study.read_bytes()[:-1]).hexdigest()


CHANGES = {
    "version": (1, r"is for protocol 1 \(privsgp .*and this site has protocol 2 \(privsgp"),
    "samples": ([1, 2, 3], "J_i"),
    "steps": (7, "K"),
    "sigma": ([0.1], "entries"),
    "format": ("x", "format"),
    "expires": ("tomorrow", "expires"),
    "limits": ({"deadline": 1.0, "staleness": 64, "fewest": 9, "transfer": 1.0}, "fewest"),
    "unknown": (1, "unknown"),
}


@pytest.mark.parametrize("key", CHANGES)
def test_a_study_that_does_not_hold_together_is_refused(three, tmp_path, key):
    value, why = CHANGES[key]
    path = tmp_path / "b.study"
    path.write_bytes(canonical(three.agreement.values | {key: value}))
    with pytest.raises(Refused, match=why):
        Agreement.read(path)


def test_another_release_of_the_same_protocol_may_take_part(three):
    values = copy.deepcopy(three.agreement.values) | {"release": "0.0"}
    assert Agreement.of(values, "a study").release == "0.0"


def test_a_study_that_is_written_otherwise_is_refused(three, tmp_path):
    path = tmp_path / "b.study"
    path.write_text(json.dumps(three.agreement.values, indent=1))
    with pytest.raises(Refused, match="canonical"):
        Agreement.read(path)


@pytest.mark.parametrize(
    ("key", "value"), [("model", {"weights": 650, "x0": "0" * 64, "features": None}), ("sigma", [0.05, 0.01, 0.05])]
)
def test_what_comes_out_otherwise_here_is_not_signed(three, key, value):
    other = Agreement.of(three.agreement.values | {key: value}, "it")
    with pytest.raises(Refused, match="nothing was signed"):
        other.spec(data.load(str(three.files[0]), classes=10), 0)


@pytest.fixture
def weighted(tmp_path):
    """A consortium whose differences from a table have the weight "auto"."""
    return Consortium.make(tmp_path / "weighted", algorithm={"name": "privsgp-vr"})


def test_what_auto_stands_for_is_signed(weighted, monkeypatch):
    """Another release may come to another number: it takes the one that was agreed on, after a restart too."""
    dataset = data.load(str(weighted.files[1]), classes=10)
    before = weighted.agreement.spec(dataset, 1).protection.mechanisms[1]
    monkeypatch.setattr(calibration, "largest_at", lambda *_: 0.5)
    assert weighted.agreement.spec(dataset, 1).protection.mechanisms[1] == before
    assert 0 < before.difference_scale != 0.5
    signed = weighted.agreement.values["config"]["algorithm"]
    assert (signed["difference_scale"], signed["difference_clip"]) == (before.difference_scale, before.difference_clip)


def test_a_restart_that_comes_to_another_weight_is_refused_by_the_ledger(weighted, tmp_path, monkeypatch):
    """Of a study that an older release proposed, in which it is "auto"."""
    values = copy.deepcopy(weighted.agreement.values)
    values["config"]["algorithm"]["difference_scale"] = "auto"
    older, dataset = Agreement.of(values, "study"), data.load(str(weighted.files[1]), classes=10)
    folder = Folder(tmp_path)
    folder.prepare()
    folder.identify({}, older.run)
    with BudgetGuard(older.spec(dataset, 1), folder) as guard:
        assert guard.reserve(0)
    monkeypatch.setattr(calibration, "largest_at", lambda *_: 0.5)
    with pytest.raises(Refused, match=r"mechanism of run .* is now .*'difference_scale': 0\.5"):
        BudgetGuard(older.spec(dataset, 1), folder).__enter__()


def test_data_of_another_size_is_refused(three):
    with pytest.raises(Refused, match="120 samples, and study says 100"):
        three.agreement.spec(data.load(str(three.files[1]), classes=10), 0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"algorithm": {"name": "dp-sgd"}}, "push-sum"),
        ({"algorithm": {"name": "soteriafl-sgd"}}, "push-sum"),
        ({"algorithm": {"average": "tail", "final_mixing": 3}}, "no average"),
        ({"privacy": {"epsilon": 3.0, "accountant": "published"}}, "is not a guarantee"),
        ({"privacy": {"epsilon": 3.0, "noise": "auto"}}, "name the sites to trust"),
        ({"features": {"name": "scattering", "like": "leaves", "components": 10**6}}, "at most 4096"),
    ],
)
def test_what_sites_could_not_promise_or_go_on_with_is_refused(three, changes, why):
    values = copy.deepcopy(RUN) | changes
    values["data"] |= {"nodes": 3, "sizes": [100, 120, 140]}
    like = data.load(str(three.files[0]), classes=10)
    with pytest.raises(Refused, match=why):
        propose(configs.parse(values), [s.card for s in three.sites], like, name="x", limits=Limits())


def test_a_study_has_a_name_that_a_file_may_have(three):
    values = copy.deepcopy(RUN)
    values["data"] |= {"nodes": 3, "sizes": [100, 120, 140]}
    like = data.load(str(three.files[0]), classes=10)
    with pytest.raises(Refused, match="name = 'two words'"):
        propose(configs.parse(values), [s.card for s in three.sites], like, name="two words", limits=Limits())


def test_nobody_can_dial_either_end_of_a_link(tmp_path):
    with pytest.raises(Refused, match="neither can be dialled"):
        Consortium.make(tmp_path / "c", closed=(1, 2))


def test_a_signature_is_of_one_site_and_one_run(three):
    mine = three.agreement.sign(three.sites[0])
    assert three.agreement.signed_by(0, mine)
    assert not three.agreement.signed_by(1, mine)
    other = Agreement.of(three.agreement.values | {"name": "another"}, "it")
    assert not other.signed_by(0, mine)
    assert not three.agreement.signed_by(0, "xy")


def test_an_agreement_expires(three):
    with pytest.raises(Refused, match="expired"):
        three.agreement.refuse_expired(dt.datetime.now(dt.UTC) + dt.timedelta(days=31))


@pytest.fixture(scope="module")
def budgeted(tmp_path_factory):
    return Consortium.make(
        tmp_path_factory.mktemp("budget") / "c",
        privacy={"epsilon": [2.0, 3.0, 4.0], "sigma": None},
        algorithm={"steps": 5},
    )


POLICIES = {
    "epsilon_run = 2.5": "asks for 3",
    "epsilon_total = 2.9": "asks for 3",
    "delta_total = 1e-6": "1e-05",
    'relation = "replace-one"': "zero-out",
    "delta_run = 1e-6": "1e-05",
    "weights = 600": "650",
    'algorithms = ["sgp"]': "privsgp",
    "fewest = 3": "continues with 2",
    'peers = ["XXXX"]': "aachen",
}


@pytest.mark.parametrize("text", POLICIES)
def test_a_policy_refuses(budgeted, text):
    site = budgeted.sites[1]
    (site.home / "policy.toml").write_text(text)
    with pytest.raises(Refused, match=POLICIES[text]) as refused:
        check_policy(site, budgeted.agreement)
    assert "nothing was sent" in refused.value.remedy


def test_where_epsilon_is_limited_delta_is_below_one_over_the_samples(tmp_path):
    c = Consortium.make(tmp_path / "c", privacy={"epsilon": 0.1, "sigma": None, "delta": 0.5}, algorithm={"steps": 5})
    site = c.sites[0]
    (site.home / "policy.toml").write_text("epsilon_run = 3.0\n")
    with pytest.raises(Refused, match="1/J"):
        check_policy(site, c.agreement)
    (site.home / "policy.toml").write_text("epsilon_run = 3.0\ndelta_run = 0.5\n")  # by name
    assert check_policy(site, c.agreement)


def test_a_policy_allows(budgeted):
    site = budgeted.sites[1]
    peers = [one.card.fingerprint for one in budgeted.sites]
    (site.home / "policy.toml").write_text(f"epsilon_run = 3.0\nepsilon_total = 4.5\npeers = {json.dumps(peers)}\n")
    assert check_policy(site, budgeted.agreement)
    found = {one.what: one for one in examine(site, budgeted.agreement)}
    assert found["policy"].fine
    assert "policy.toml allows it" in found["policy"].text
    (site.home / "policy.toml").write_text("epsilon_run = 1.0")
    refused = {one.what: one for one in examine(site, budgeted.agreement)}["policy"]
    assert (refused.fine, "epsilon_run = 1" in refused.text) == (False, True)
    (site.home / "policy.toml").unlink()


@pytest.mark.parametrize("text", ["epsilon = 3", "epsilon_run = -1", "epsilon_run ="])
def test_a_policy_that_cannot_be_read_allows_nothing(tmp_path, text):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(Refused):
        policy.read(tmp_path / "policy.toml")


def test_the_commands_of_agreements(budgeted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(
        "[data]\nnodes=3\nsizes=[100,120,140]\nclasses=10\n[model]\nname='logistic'\n[graph]\nname='complete'\n"
        "[privacy]\nsigma=0.05\n[algorithm]\nname='privsgp'\nsteps=5\n"
    )
    for site in budgeted.sites:
        site.card.write(tmp_path / f"{site.name}.card")
    cards = [f"--site={site.name}.card" for site in budgeted.sites]
    ran = command("agree", "propose", "run.toml", *cards, f"--data={budgeted.files[0]}", "-o", "x.study")
    assert ran.code == 0, ran.err
    shown = json.loads(command("agree", "show", "x.study", "--json").out)
    assert shown["run"] == Agreement.read(tmp_path / "x.study").run
    home = "--home", budgeted.sites[0].home
    assert "aachen" in (told := command("agree", "show", "x.study", *home).out)
    assert "next: compare fingerprints by telephone, then privsgp doctor x.study" in told
    ran = command("relay", "x.study", *home)
    assert (ran.code, "relaying" in ran.err) == (2, False)
    assert "is not the relay" in ran.err
    assert command("agree", "propose", "run.toml", *cards[:2], "-o", "y.study").code == 2


@pytest.mark.parametrize(
    ("hidden", "weights", "why"),
    [
        (10**9, 650, "says 650 weights, and its model has 75000000010"),  # 300 GB
        (10**19, 650, "more than can be counted"),
        (2 * 10**8, 75 * 2 * 10**8 + 10, "of memory are free"),
    ],
)
def test_a_huge_model_is_refused_before_it_takes_memory(three, hidden, weights, why):
    """A proposer may write any size beside its configuration; the policy is asked about the one that it has."""
    values = copy.deepcopy(three.agreement.values)
    values["model"]["weights"] = weights
    values["config"]["model"] |= {"name": "mlp", "hidden": hidden}
    huge = Agreement.model_validate(values)
    with pytest.raises(Refused, match=why):
        huge.spec(data.load(str(three.files[0]), classes=10), 0)


def test_features_are_made_anew_and_compared(three, tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVSGP_CACHE", str(tmp_path / "cache"))
    d = data.load(str(three.files[0]), classes=10)
    d = dataclasses.replace(d, x=d.x.reshape(-1, 1, 8, 8), x_test=d.x_test.reshape(-1, 1, 8, 8))
    made = {"name": "scattering"}
    values = three.agreement.config.shared() | {"features": made}
    agreement = propose(
        configs.parse(values), [site.card for site in three.sites], d, name="images", limits=Limits(deadline=30.0)
    )
    spec = agreement.spec(d, 0)
    assert agreement.values["model"]["features"] is not None
    assert agreement.weights == spec.learning.model[1].in_features * 10 + 10
    assert spec.learning.inputs.shape[2:].numel() == spec.learning.model[1].in_features
    other = copy.deepcopy(agreement.values)
    other["model"]["features"] = "0" * 64
    with pytest.raises(Refused, match="comes out differently here"):
        Agreement.model_validate(other).spec(d, 0)
