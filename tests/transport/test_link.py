"""One robust link alone: messages that are lost, late, doubled or out of order change nothing for good."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from links import Incoming, Outgoing
from privsgp.transport import link as links
from privsgp.transport.link import gathered, grown

WHOLE = st.integers(-(2**20), 2**20)  # sums of these are exact


@given(st.lists(st.tuples(WHOLE, WHOLE), min_size=1, max_size=12), st.data())
def test_whatever_becomes_of_messages_what_arrived_and_what_is_on_its_way_is_what_was_sent(shares, data):
    out, into, flying, held = Outgoing(1, 2), Incoming(1, 2), [], torch.zeros(2, dtype=torch.float64)
    for k, share in enumerate(shares):
        out.send(k, [0], torch.tensor([share], dtype=torch.float64))
        flying.append((k, out.message(k, [0])))
    sent = torch.tensor(shares, dtype=torch.float64).sum(0)
    arrivals = data.draw(st.lists(st.sampled_from(flying), max_size=20))  # in any order, some never, some twice
    for step, message in arrivals:
        before = int(into.newest[0])
        news = into.receive(step, [0], message)
        held += news[0]
        assert into.newest[0] == max(step, before)
        assert step > before or not news.any()
        assert torch.equal(held + (out.sums[(len(shares) - 1) % 1, 0] - into.arrived[0]), sent)
    held += into.receive(len(shares) - 1, [0], flying[-1][1])[0]
    assert torch.equal(held, sent)  # the last message makes up for all before it


def test_a_message_is_all_that_was_ever_sent():
    out = Outgoing(1, 1, kept=3)
    for k in range(4):
        out.send(k, [0], torch.full((1, 1), 10.0**k, dtype=torch.float64))
    assert [out.message(k, [0]).item() for k in (1, 2, 3)] == [11.0, 111.0, 1111.0]


def test_a_link_that_was_not_used_keeps_its_sum():
    out = Outgoing(2, 1, kept=2)
    out.send(0, [0, 1], torch.ones(2, 1, dtype=torch.float64))
    out.send(1, [1], torch.ones(1, 1, dtype=torch.float64))
    assert out.message(1, [0, 1]).flatten().tolist() == [1.0, 2.0]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), WHOLE), max_size=15))
def test_many_links_are_many_times_one_link(arrivals):
    """`receive` of rows is `receive` of each."""
    many, alone = Incoming(3, 1), [Incoming(1, 1) for _ in range(3)]
    for link, step, number in arrivals:
        message = torch.tensor([[number]], dtype=torch.float64)
        assert torch.equal(many.receive(step, [link], message), alone[link].receive(step, [0], message))
    assert torch.equal(many.arrived, torch.cat([one.arrived for one in alone]))
    assert torch.equal(many.newest, torch.cat([one.newest for one in alone]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(st.integers(1, 70), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_one_link_in_parts_is_a_row_of_many_bit_by_bit(dtype, d, steps, seed):
    """`grown` is `Outgoing.send`, `gathered` what adding `Incoming.receive` does; signs of zeros included."""
    rng = torch.Generator().manual_seed(seed)
    out, into, before = Outgoing(2, d + 1), Incoming(2, d + 1), [np.zeros(d + 1)] * 2
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(links, "_PIECE", 16)
        for k in range(steps):
            x, w, share = torch.randn(1, d, generator=rng, dtype=dtype), 0.3 + k, 1 / 3
            x[0, ::5] = -0.0
            rows = torch.cat([x.double(), torch.tensor([[w]], dtype=torch.float64)], 1)
            out.send(k, [0, 1], rows * torch.tensor([share, share / 2], dtype=torch.float64)[:, None])
            now = [grown(before[link], x[0].numpy(), w, share / (1 + link)) for link in range(2)]
            assert np.concatenate(now).tobytes() == out.message(k, [0, 1]).numpy().tobytes()
            mixed, total, _ = gathered(x[0].numpy(), w, share, list(zip(now, before, strict=True)))
            right = rows * share
            for link in range(2):
                right += into.receive(k, [link], out.message(k, [link]))
            assert mixed.tobytes() == right[0, :-1].to(dtype).numpy().tobytes()
            assert total == right[0, -1]
            before = now


@given(
    st.integers(1, 40),
    st.sampled_from([1e-30, 1.0, 1e18]),
    st.sampled_from([1e-200, 1e-3, 0.5, 3.0]),
    st.floats(1e-6, 3.0),
    st.integers(0, 2**32 - 1),
)
def test_a_message_is_measured_by_its_model_and_how_far_that_is(d, size, weight, w, seed):
    rng = np.random.default_rng(seed)
    x, before = rng.normal(size=d).astype(np.float32), rng.normal(size=d + 1)
    now = before + np.append(size * rng.normal(size=d), 0.0)
    before[-1], now[-1] = 0.0, weight
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(links, "_PIECE", 16)
        *_, (increment,) = gathered(x, w, 0.5, [(now, before)])
    assert increment.weight == weight
    model = (now - before)[:-1] / weight
    norm, distance = math.hypot(*model), math.hypot(*(model - x / w))
    assert increment.norm == pytest.approx(norm, rel=1e-6)
    assert increment.distance == pytest.approx(distance, rel=1e-6, abs=1e-6 * (norm + 1 / w))
