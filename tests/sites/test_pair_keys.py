"""Secrets of two sites: who can make them, who cannot, and the noise that is made of them, attacked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from consortium import Consortium
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

import planted
from privsgp import data
from privsgp.accounting.policy import Policy
from privsgp.audit import attack as attacks
from privsgp.errors import Refused
from privsgp.randomness import pairwise
from privsgp.randomness.noise import Keyed, Secure
from privsgp.randomness.pair_streams import PairStreams
from privsgp.randomness.pairwise import Ends
from privsgp.sites.agreement import Agreement
from privsgp.sites.protocol.gossip import Gossip
from privsgp.sites.protocol.pairs import PairKeys, is_word

N, HONEST, D = 6, 4, 400


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    privacy = {"noise": "pairwise", "honest": HONEST, "sigma": [0.05, 0.05, 0.06, 0.05, 0.04, 0.05]}
    return Consortium.make(tmp_path_factory.mktemp("six") / "c", sizes=(30,) * N, privacy=privacy)


@pytest.fixture
def keys(six, tmp_path):
    """Each site's keys, when all have heard of each other's."""
    made = [PairKeys(s, six.agreement, i, tmp_path / f"{i}.key", {}) for i, s in enumerate(six.sites)]
    for one in made:
        one.open(begun=False)
    words = {i: one.words[i] for i, one in enumerate(made)}
    for one in made:
        one.words.update(words)
    return made


def spec_of(six, i):
    return six.agreement.spec(data.load(str(six.files[i]), classes=10), i)


def noises(six, keys):
    """Return each site's noise, made as its trainer makes it."""
    spec = spec_of(six, 0)
    mechanisms = spec.protection.mechanisms
    return [spec.noise.of_nodes(range(i, i + 1), mechanisms[i : i + 1], Secure(), keys[i].streams) for i in range(N)]


def drawn(noises, step, columns=D):
    rows = [torch.zeros(1, columns, dtype=torch.float64) for _ in noises]
    for i, (noise, row) in enumerate(zip(noises, rows, strict=True)):
        noise.add_(row, [i], step)
    return torch.cat(rows)


def test_both_ends_have_one_secret_and_nobody_else_has_it(keys):
    secrets = {(i, j): keys[i]._secret(i, j) for i in range(N) for j in range(i + 1, N)}
    assert secrets == {(i, j): keys[j]._secret(i, j) for i, j in secrets}
    assert len(set(secrets.values())) == len(secrets) == 15


def test_another_agreement_gives_other_secrets(six, keys):
    """The same sites, the same run keys."""
    other = Agreement.of(six.agreement.values | {"name": "another"}, "another")
    ends = []
    for i in (0, 1):
        made = PairKeys(six.sites[i], other, i, keys[i].path, dict(keys[i].words))
        ends.append(made._secret(0, 1))
    assert ends[0] == ends[1] != keys[0]._secret(0, 1)


def test_a_stolen_home_without_the_run_key_does_not_give_a_secret(six, keys, tmp_path):
    stolen = PairKeys(six.sites[0], six.agreement, 0, tmp_path / "another.key", dict(keys[0].words))
    keys[0].path.chmod(0o600)
    secret = keys[0]._secret(0, 1)
    stolen.path.write_bytes(keys[2].path.read_bytes())
    with pytest.raises(Refused, match="not the key that this site sent"):
        stolen._secret(0, 1)
    keys[0].forget()
    with pytest.raises(Refused, match="is missing"):
        keys[0]._secret(0, 1)
    assert len(secret) == 32


def forged(six, keys, how):
    """Return what somebody else puts in the place of site 1's word."""
    public = X25519PrivateKey.generate().public_key().public_bytes_raw()
    run = six.agreement.run
    if how == "by another":
        signature = six.sites[2].sign(b"pair key", f"{run}/1/{public.hex()}".encode())
    elif how == "of another node":
        return keys[2].words[2]
    elif how == "of another run":
        signature = six.sites[1].sign(b"pair key", f"{'0' * 64}/1/{public.hex()}".encode())
    elif how == "of another purpose":
        signature = six.sites[1].sign(b"message", f"{run}/1/{public.hex()}".encode())
    elif how == "key changed":
        return public.hex() + keys[1].words[1][64:]
    else:  # no secret comes of this point
        signature, public = six.sites[1].sign(b"pair key", f"{run}/1/{'00' * 32}".encode()), bytes(32)
    return public.hex() + signature.hex()


@pytest.mark.parametrize(
    "how", ["by another", "of another node", "of another run", "of another purpose", "key changed", "zero"]
)
def test_a_key_that_its_site_did_not_sign_for_this_run_is_not_taken(six, keys, how):
    """So that no relay, and no peer that passes words on, sits between two sites."""
    members = Gossip(six.agreement, 0, 1, six.agreement.sign(six.sites[0]))
    word = forged(six, keys, how)
    assert not is_word(six.agreement, 1, word)
    members.take_up({}, {}, {1: word})
    assert 1 not in members.pair_keys
    members.take_up({}, {}, {1: keys[1].words[1]})
    assert 1 in members.pair_keys


def test_a_key_is_waited_for_as_a_signature_is_and_a_second_one_changes_nothing(six, keys, tmp_path):
    members = Gossip(six.agreement, 0, 1, six.agreement.sign(six.sites[0]))
    members.signatures = {i: six.agreement.sign(site) for i, site in enumerate(six.sites)}
    members.pair_keys.update({i: keys[i].words[i] for i in range(N) if i != 3})
    assert members.unsigned() == ["delft"]
    members.take_up({}, {}, {3: keys[3].words[3]})
    assert not members.unsigned()
    second = PairKeys(six.sites[3], six.agreement, 3, tmp_path / "second.key", {})
    second.open(begun=False)
    assert is_word(six.agreement, 3, second.words[3])
    members.take_up({}, {}, {3: second.words[3]})
    assert members.pair_keys[3] == keys[3].words[3]


def test_the_run_key_is_for_its_owner_alone_and_survives(six, keys):
    again = PairKeys(six.sites[0], six.agreement, 0, keys[0].path, {})
    again.open(begun=True)
    assert again.words[0] == keys[0].words[0]
    assert keys[0].path.stat().st_mode & 0o777 == 0o600
    keys[0].path.chmod(0o640)
    with pytest.raises(Refused, match="open to others"):
        again.open(begun=True)


def test_no_numbers_of_a_committed_step(six, keys):
    noise, g = noises(six, keys)[0], torch.zeros(1, D, dtype=torch.float64)
    noise.add_(g, [0], 0)
    keys[0].used(4)
    for step in (4, 3):
        with pytest.raises(Refused, match="step 4 is"):
            noise.add_(g.zero_(), [0], step)
    noise.add_(g, [0], 5)
    with pytest.raises(Refused, match="already used"):  # nor twice in one life
        noise.add_(g, [0], 5)


def test_a_restarted_site_makes_the_numbers_that_its_partners_have_made(six, keys):
    first = drawn(noises(six, keys), 3)
    again = drawn(noises(six, keys), 3)  # all of them new processes: own noise is fresh, pairs' is not
    left = (first - again)[0].std()
    c = spec_of(six, 0).protection.covariance
    assert float(left) == pytest.approx(2**0.5 * c.own_sigma[0], rel=0.2)
    assert float(first[0].std()) == pytest.approx(c.message_sigma[0], rel=0.2)


def test_the_noise_of_sites_is_made_by_the_code_of_one_process_and_of_torchrun(six, keys):
    """The same keys and the same own noise give the same bytes, whoever brings the keys."""
    spec = spec_of(six, 0)
    noise, mechanisms = spec.noise, spec.protection.mechanisms
    here = [Ends(noise.covariance.nodes, range(i, i + 1)) for i in range(N)]
    everything = {here[0].number((i, j)): keys[i]._secret(i, j) for i in range(N) for j in range(i + 1, N)}
    whole = pairwise._OfNodes(
        noise, Ends(noise.covariance.nodes, range(N)), mechanisms, Keyed(1), PairStreams(everything)
    )
    told = [{pair: everything[pair] for pair in map(ends.number, ends.pairs)} for ends in here]
    g = torch.zeros(N, D, dtype=torch.float32)
    whole.add_(g, range(N), 2)
    for i, ends in enumerate(here):
        for streams in (keys[i].streams(ends), PairStreams(told[i])):
            row = torch.zeros(1, D, dtype=torch.float32)
            pairwise._OfNodes(noise, ends, mechanisms[i : i + 1], Keyed(1), streams).add_(row, [i], 2)
            assert torch.equal(row[0], g[i])


def attacked(six, keys, steps=8):
    """Return what is left of σ_eff² before a coalition that knows all its secrets, and of steps' differences; and p."""
    made, covariance = noises(six, keys), spec_of(six, 0).protection.covariance
    told = [attacks.listen(one, lambda out: out[:, None, :]) for one in made]
    everybody = told[0]
    attack = attacks._Collusion(covariance, HONEST, everybody)
    left = []
    for k in range(steps):
        added = drawn(made, k)[:, None, :]
        everybody.numbers = {key: row for one in told for key, row in one.numbers.items() if key[1] == k}
        left.append(added - attack.known(k, added))
    rest, worth = torch.stack(left)[:, :, 0], torch.tensor(covariance.effective(HONEST))[None, :, None]
    alone = (rest / worth).square().mean((0, 2))
    between = ((rest[1::2] - rest[::2]) / worth).square().mean((0, 2)) / 2
    return float(min(alone.min(), between.min())), attack.cancellation_p()


BUGS = {bug.name: bug for bug in (planted.SHARED_NOTHING, *planted.SHARED_BUGS) if bug.options != planted.LOCAL}


@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_found_in_the_noise_of_sites(six, keys, name, monkeypatch):
    """σ_eff² must be left of every message, and of the difference of two; pairs must cancel."""
    if name == "pair's numbers used twice":
        with BUGS[name].patch(), pytest.raises(Refused, match="already used"):
            attacked(six, keys)
        monkeypatch.setattr(PairStreams, "fill_normal", unguarded)  # and without the guard, the attack finds it
    with BUGS[name].patch():
        least, p = attacked(six, keys)
    assert (least < 0.8 or p < 1e-6) == (name != "nothing, pairwise")


def unguarded(self, out, nodes, step):
    self._fill(out.numpy(), nodes, step, np.float64)


def test_what_is_agreed_on_is_checked_by_each_site(six):
    values = six.agreement.values
    for own, pair, why in ((0.5, 0.5, "site computes"), (4.0, 1.0, "site computes"), (0.995, 0.995, "only σ =")):
        shared = values["shared_noise"]
        noise = {"own": [own * D for D in shared["own"]], "pair": pair * shared["pair"]}
        changed = Agreement.model_validate(values | {"shared_noise": noise})
        with pytest.raises(Refused, match=why):
            changed.spec(data.load(str(six.files[0]), classes=10), 0)
    for noise in (None, {"own": [1.0], "pair": 1.0}):
        with pytest.raises(Refused, match="shared_noise"):
            Agreement.of(values | {"shared_noise": noise}, "it")


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        (Policy(), True),
        (Policy(honest=HONEST), True),
        (Policy(honest=HONEST - 1), False),
        (Policy(honest=1), False),
        (Policy(delta_run=1e-3), False),
        (Policy(delta_run=1e-3, honest=N), True),
    ],
)
def test_a_policy_says_how_many_others_may_have_to_be_trusted(six, policy, allowed):
    if allowed:
        six.agreement.refuse_policy(policy, 0)
        return
    with pytest.raises(Refused, match="honest"):
        six.agreement.refuse_policy(policy, 0)
