"""What arrives from another process: it is used only as a whole message of this run, step and sender."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import HashStore

import malformed
from privsgp import graph
from privsgp.algorithms import State
from privsgp.engine.trainer import refuse_no_model
from privsgp.errors import Diverged, Refused
from privsgp.transport import torch_distributed as distributed
from privsgp.transport.rendezvous import Processes
from privsgp.transport.torch_distributed import TorchDistributed


@pytest.fixture
def pair(monkeypatch):
    """Two processes of two nodes each, as far as messages are made and read."""
    monkeypatch.setattr(distributed, "_connect", lambda *_: None)
    store = HashStore()

    def make(rank):
        across = TorchDistributed(graph.make("exponential", 4), torch.zeros(2, 3), Processes(rank, 2, store, 1.0))
        across.world.run, across.world.step = "a" * 32, 7
        return across

    return make(0), make(1)


X, W = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([0.5, 1.5], dtype=torch.float64)


def _sent(pair, x=X, w=W):
    sender = pair[1]
    return sender._packed(sender._room(2, 12), torch.arange(len(x)), x.view(torch.uint8), w).clone()


def test_an_honest_message_comes_as_it_was_sent(pair):
    rows, weights = pair[0]._checked(_sent(pair), 1, range(2, 4))
    assert torch.equal(rows, X)
    assert torch.equal(weights, W)


def test_memory_for_messages_is_zero(pair):
    dirty = [torch.full((128,), 7, dtype=torch.uint8) for _ in range(100)]
    del dirty
    assert not pair[0]._room(2, 12).any()


@pytest.mark.parametrize("kept", [0, 8, 40, 79])
def test_a_short_message_is_refused(pair, kept):
    there, whole = pair[0]._room(2, 12), _sent(pair)
    there[:kept].copy_(whole[:kept])  # what gloo does with it
    with pytest.raises(Refused, match="process 1 sent something at step 7 that is no message of 80 bytes"):
        pair[0]._checked(there, 1, range(2, 4))


@pytest.mark.parametrize("byte", range(0, 80, 9))
def test_a_byte_that_changed_is_refused(pair, byte):
    message = _sent(pair)
    message[byte] ^= 1
    with pytest.raises(Refused, match="process 1 sent"):
        pair[0]._checked(message, 1, range(2, 4))


@pytest.mark.parametrize(("name", "value"), [("step", 6), ("run", "b" * 32), ("rank", 0)])
def test_a_message_of_another_step_run_or_sender_is_refused(pair, name, value):
    setattr(pair[1].world, name, value)
    with pytest.raises(Refused, match="process 1 sent"):
        pair[0]._checked(_sent(pair), 1, range(2, 4))


@pytest.mark.parametrize("w", [0.0, -0.0, *malformed.WEIGHTS.values()])
def test_a_weight_that_cannot_be_is_refused_in_its_nodes_name(pair, w):
    with pytest.raises(Refused, match=r"process 1 sent w = \S+ for its node 3 at step 7"):
        pair[0]._checked(_sent(pair, w=torch.tensor([0.5, w], dtype=torch.float64)), 1, range(2, 4))


@pytest.mark.parametrize("number", [-1e38, *malformed.NUMBERS.values()])
def test_what_is_no_model_is_blamed_on_its_sender(pair, number):
    x = X.clone()
    x[1, 2] = number
    with pytest.raises(Diverged, match=r"the message of node 3 \(process 1\) (is not finite|holds 1e\+38)"):
        pair[0]._checked(_sent(pair, x), 1, range(2, 4))


def _left_with(w, x=1.0):
    return State.debiased(torch.full((2, 3), x), torch.tensor([1.0, w], dtype=torch.float64))


@pytest.mark.parametrize("w", [0.0, -0.5, 1e-20])
def test_a_weight_from_which_no_model_follows(w):
    with pytest.raises(Diverged, match="the weight of node 5 is w = "):
        refuse_no_model(9, _left_with(w), range(4, 6))


def test_a_node_that_left_has_no_model_to_be_refused():
    refuse_no_model(9, _left_with(0.5), range(4, 6))


def test_a_quotient_that_is_no_model():
    with pytest.raises(Diverged, match="node 5 holds"):
        refuse_no_model(9, _left_with(1e-5, 1e16), range(4, 6))
