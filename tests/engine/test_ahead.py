"""Noise drawn ahead is the noise of its step, and nobody else's."""

from __future__ import annotations

import pytest
import torch

from privsgp.engine.ahead import Ahead
from privsgp.errors import Refused
from privsgp.privacy.noise import Keyed, Secure, add_noise_

NODES = range(3, 8)


def _noised(source, step, attempt=0):
    g = torch.zeros(5, 40)
    add_noise_(g, source, NODES, step, sigma=[1.0] * 5, attempt=attempt)
    return g


def test_it_gives_the_bits_of_its_source():
    plain, ahead = Keyed(3), Ahead(Keyed(3), NODES)
    for step in range(4):
        ahead.prepare(torch.zeros(5, 40), step + 1, 0)
        assert torch.equal(_noised(ahead, step), _noised(plain, step))
        assert torch.equal(_noised(ahead, step + 1), _noised(plain, step + 1))


def test_another_attempt_is_drawn_afresh():
    ahead = Ahead(Keyed(3), NODES)
    ahead.prepare(torch.zeros(5, 40), 1, 0)
    assert torch.equal(_noised(ahead, 1, attempt=1), _noised(Keyed(3), 1, attempt=1))


def test_secret_noise_is_handed_out_once():
    ahead = Ahead(Secure(), NODES)
    assert ahead.secret
    ahead.prepare(torch.zeros(5, 40), 1, 0)
    assert _noised(ahead, 1).std() > 0.5
    with pytest.raises(Refused, match="already used"):
        _noised(ahead, 1)


def test_coins_are_those_of_the_source():
    assert (Ahead(Keyed(3), NODES).uniforms(4, 2, 10) == Keyed(3).uniforms(4, 2, 10)).all()
