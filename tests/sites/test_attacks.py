"""What an outsider, a member or a careless administrator might try against a site's ε, and what becomes of it."""

from __future__ import annotations

import pytest
from consortium import Consortium

from privsgp.errors import Refused
from privsgp.sites.agreement import Agreement
from privsgp.sites.canonical import canonical
from privsgp.sites.identity import Card, Site, _to_sign
from privsgp.sites.join import _remember_signature, check_policy


@pytest.fixture(scope="module")
def budgeted(tmp_path_factory):
    return Consortium.make(
        tmp_path_factory.mktemp("budget") / "c",
        privacy={"epsilon": [2.0, 3.0, 4.0], "sigma": None},
        algorithm={"steps": 5},
    )


@pytest.mark.parametrize(("key", "value"), [("epsilon", [0.1, 0.1, 0.1]), ("delta", [1e-9, 1e-9, 1e-9])])
def test_a_budget_that_is_shown_is_the_one_that_is_kept_to(budgeted, key, value):
    """Else a policy would be asked about 0.1, and the noise would be that of 2."""
    with pytest.raises(Refused, match=key):
        Agreement.of(budgeted.agreement.values | {key: value}, "it")


@pytest.mark.parametrize("key", ["created", "expires"])
def test_a_time_that_is_none_is_refused(three, key):
    with pytest.raises(Refused, match=key):
        Agreement.of(three.agreement.values | {key: "2026-99-45T99:00:00Z"}, "it")


@pytest.mark.parametrize("key", ["deadline", "transfer"])
def test_limits_that_no_clock_can_wait_for_are_refused(three, tmp_path, key):
    path = tmp_path / "b.study"
    path.write_bytes(canonical(three.agreement.values | {"limits": three.agreement.values["limits"] | {key: 1e300}}))
    with pytest.raises(Refused, match=key):
        Agreement.read(path)


def endorsed(site, **changes):
    values = {key: value for key, value in (site.card.values | changes).items() if key != "endorsement"}
    return values | {"endorsement": site._identity.sign(_to_sign(b"card", canonical(values))).hex()}


@pytest.mark.parametrize(
    "address", ["nowhere", "unix:/run/docker.sock", "a:1\r\nX: y", "\x1b[2Ja:1", "a:99999", "dns:///a:1"]
)
def test_a_card_with_an_address_that_is_none_is_refused(tmp_path, address):
    site = Site.create(tmp_path / "h", "aachen", address="a:1")
    with pytest.raises(Refused, match="address"):
        Card.of(endorsed(site, address=address), "it")


def test_a_card_brings_one_authority_and_no_more(tmp_path):
    site, other = (Site.create(tmp_path / name, name, address=None) for name in ("aachen", "evil"))
    for more in (other.card.values["authority"], "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(Refused, match="endorsed"):
            Card.of(endorsed(site, authority=site.card.values["authority"] + more), "it")


def seeded(c):
    return Agreement.of(c.agreement.values | {"config": c.agreement.values["config"] | {"seed": 1}}, "it")


def test_with_a_seed_there_is_no_epsilon_that_a_policy_could_allow(budgeted):
    site, agreement = budgeted.sites[0], seeded(budgeted)
    policy = site.home / "policy.toml"
    for text in ("epsilon_run = 9.0", "epsilon_total = 9.0", "delta_run = 0.1", "simulation = false"):
        policy.write_text(text)
        with pytest.raises(Refused, match="seed"):
            check_policy(site, agreement)
    policy.write_text("epsilon_run = 9.0\nsimulation = true")
    assert check_policy(site, agreement)
    policy.unlink()


@pytest.mark.parametrize("epsilon", ["null", '"1"', "NaN", "-5.0"])
def test_a_run_without_epsilon_is_not_counted_as_nothing(budgeted, epsilon):
    site = budgeted.sites[0]
    (site.home / "policy.toml").write_text("epsilon_total = 9.0")
    (site.home / "signed.jsonl").write_text(f'{{"run":"x","name":"old","epsilon":{epsilon},"delta":1e-5}}\n')
    with pytest.raises(Refused, match=r"old|signed"):
        check_policy(site, budgeted.agreement)
    for name in ("policy.toml", "signed.jsonl"):
        (site.home / name).unlink()


def test_two_studies_that_are_joined_at_once_do_not_both_fit(budgeted):
    """Each asks the policy before the other has signed; it is asked again when the signature is noted."""
    site, one = budgeted.sites[0], budgeted.agreement
    two = Agreement.of(one.values | {"name": "two"}, "it")
    (site.home / "policy.toml").write_text("epsilon_total = 3.0")
    assert check_policy(site, one)
    assert check_policy(site, two)
    _remember_signature(site, one)
    with pytest.raises(Refused, match="epsilon_total"):
        _remember_signature(site, two)
    assert len((site.home / "signed.jsonl").read_text().splitlines()) == 1
    for name in ("policy.toml", "signed.jsonl"):
        (site.home / name).unlink()
