"""The rule for nn.LSTM, nn.GRU and nn.RNN: the recurrence is unrolled, and one backward pass gives δ at every step.

At step t a layer adds W_ih x_t + b_ih and W_hh h_{t−1} + b_hh. With δ and δ' by these two sums, a sample's gradient is
Σ_t δ_t ⊗ x_t, Σ_t δ'_t ⊗ h_{t−1}, Σ_t δ_t and Σ_t δ'_t. `Unrolled` is the same recurrence as a plain module:
`torch.func` cannot look into torch's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from privsgp.gradients.per_sample import Piece, Plain
from privsgp.gradients.product import Forward, no_tf32
from privsgp.gradients.rules.layer import Call, StackedLayer

Times = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # a Wᵀ + bias
State = tuple[Tensor, ...]  # h, or h and c
KINDS = (nn.LSTM, nn.GRU, nn.RNN)


@dataclass(frozen=True)
class Shape:
    """What a recurrent layer is: its cell, and how many layers and directions of it there are."""

    cell: str  # LSTM, GRU, RNN_TANH, RNN_RELU
    hidden: int
    layers: int
    directions: int

    @classmethod
    def of(cls, layer: nn.RNNBase) -> Shape:
        """Read it off a layer of torch's."""
        return cls(layer.mode, layer.hidden_size, layer.num_layers, 2 if layer.bidirectional else 1)

    @property
    def gates(self) -> int:
        """Numbers that a cell's two sums have, each."""
        return {"LSTM": 4, "GRU": 3}.get(self.cell, 1) * self.hidden

    def suffixes(self) -> Iterator[str]:
        """Return what ends the names of parameters, layer by layer, direction by direction."""
        for layer in range(self.layers):
            yield from (f"_l{layer}", f"_l{layer}_reverse")[: self.directions]


@dataclass
class Seen:
    """What passed through: outputs [.., T, ·], last states, and of each cell what its two products were of."""

    output: Tensor
    states: list[State]
    kept: list[Tensor]


def unroll(
    shape: Shape,
    weights: Mapping[str, Tensor],
    x: Tensor,
    times: Times,
    *,
    first: list[State] | None = None,
    probes: list[Tensor] | None = None,
) -> Seen:
    """Run the recurrence over x [.., T, in]; `probes` [.., T, 2 · gates] are added to the two sums of each cell."""
    states, kept = [], []
    for number, suffix in enumerate(shape.suffixes()):
        if number % shape.directions == 0:
            given, outputs = x, []
        probe = None if probes is None else probes[number]
        state = None if first is None else first[number]
        out, before, last = _direction(shape, weights, suffix, given, times, state, probe)
        outputs.append(out)
        states.append(last)
        kept.append(torch.cat([given, before], -1))
        if number % shape.directions == shape.directions - 1:
            x = torch.cat(outputs, -1)
    return Seen(x, states, kept)


def _direction(
    shape: Shape, weights: Mapping[str, Tensor], suffix: str, x: Tensor, times: Times, state: State | None,
    probe: Tensor | None,
) -> tuple[Tensor, Tensor, State]:  # fmt: skip
    """Run one layer in one direction; return its outputs, the states before each step, and the last one."""
    inner = times(x, weights[f"weight_ih{suffix}"], weights.get(f"bias_ih{suffix}"))
    if probe is not None:
        inner = inner + probe[..., : shape.gates]
    zero = x.new_zeros(*x.shape[:-2], shape.hidden)
    now: State = ((zero, zero) if shape.cell == "LSTM" else (zero,)) if state is None else state
    steps = range(x.shape[-2])
    before: list[Tensor] = []
    outputs: list[Tensor] = []
    for t in reversed(steps) if suffix.endswith("_reverse") else steps:
        before.append(now[0])
        h = now[0].unsqueeze(-2)  # one row more, as of a sequence of one
        outer = times(h, weights[f"weight_hh{suffix}"], weights.get(f"bias_hh{suffix}")).squeeze(-2)
        if probe is not None:
            outer = outer + probe[..., t, shape.gates :]
        now = _cell(shape.cell, inner[..., t, :], outer, now)
        outputs.append(now[0])
    if suffix.endswith("_reverse"):
        before.reverse()
        outputs.reverse()
    return torch.stack(outputs, -2), torch.stack(before, -2), now


def _cell(kind: str, inner: Tensor, outer: Tensor, state: State) -> State:
    """Take one step, as torch's documentation of the layer has it."""
    h = state[0]
    if kind == "LSTM":
        i, f, g, o = (inner + outer).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if kind == "GRU":
        (r, z, n), (r_h, z_h, n_h) = inner.chunk(3, -1), outer.chunk(3, -1)
        new, stay = (n + (r + r_h).sigmoid() * n_h).tanh(), (z + z_h).sigmoid()
        return ((1 - stay) * new + stay * h,)
    total = inner + outer
    return (total.tanh() if kind == "RNN_TANH" else total.relu(),)


def _returned(cell: str, output: Tensor, states: list[State]) -> tuple[Tensor, Any]:
    """Return what torch's layers do: outputs, and h, or h and c, of each layer and direction."""
    last = [torch.stack(parts) for parts in zip(*states, strict=True)]
    return output, (last[0], last[1]) if cell == "LSTM" else last[0]


class StackedRecurrent(StackedLayer):
    """A recurrent layer of m models."""

    @classmethod
    def positions(cls, output: object) -> int:  # a pair: the output, and the last state
        """Return the safe side: a sample's time steps may cancel, and its gradients are plain."""
        del output
        return 2

    def __init__(self, name: str, layer: nn.RNNBase) -> None:
        super().__init__(name, layer)
        self.shape = Shape.of(layer)
        self.names = [p for p, _ in layer.named_parameters()]

    @staticmethod
    def suits(layer: nn.Module) -> bool:
        """Samples come first, and nothing is random or projected."""
        assert isinstance(layer, nn.RNNBase)  # noqa: S101 - the registry asks for its own kind alone
        return layer.batch_first and layer.proj_size == 0 and layer.dropout == 0

    def forward(self, x: Tensor, hx: object = None) -> tuple[Tensor, Any]:
        """Run each model's own recurrence; a first state that is given is left to `torch.func`."""
        if hx is not None or x.ndim != 3:
            raise ValueError("sequences [B, T, ·] without a first state have a rule")
        a, shape = self.split(x), self.shape
        cells, room = shape.layers * shape.directions, 2 * shape.gates
        probe = a.new_zeros(*a.shape[:-1], cells * room).requires_grad_()
        probes = list(torch.split(probe, room, -1))
        seen = unroll(shape, self.stacked, a, _stacked_times, probes=probes)
        self.record(x, torch.cat(seen.kept, -1), probe)
        states = [tuple(self.join(part) for part in state) for state in seen.states]
        return _returned(shape.cell, self.join(seen.output), states)

    def piece(self, call: Call, delta: Tensor, batch: int, *, input_is_data: bool) -> Piece:
        """Sum δ ⊗ input over the steps; whole, since sums over steps may cancel."""
        del batch, input_is_data
        gates, hidden = self.shape.gates, self.shape.hidden
        widths = [self.stacked[f"weight_ih{s}"].shape[-1] + hidden for s in self.shape.suffixes()]
        parts: dict[str, Tensor] = {}
        deltas, kepts = torch.split(delta, 2 * gates, -1), torch.split(call.kept, widths, -1)
        for suffix, d, kept in zip(self.shape.suffixes(), deltas, kepts, strict=True):
            inner, outer = torch.split(d, gates, -1)
            x, h = torch.split(kept, [kept.shape[-1] - hidden, hidden], -1)
            with no_tf32(d):
                parts[f"weight_ih{suffix}"] = (inner.mT @ x).flatten(2)
                parts[f"weight_hh{suffix}"] = (outer.mT @ h).flatten(2)
            parts[f"bias_ih{suffix}"], parts[f"bias_hh{suffix}"] = inner.sum(2), outer.sum(2)
        return Plain(torch.cat([parts[name] for name in self.names if name in self.trained], -1))


def _stacked_times(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply a [m, b, …, in] by each model's own weight."""
    rows = a.flatten(1, -2)
    out: Tensor = Forward.apply(rows, weight, None if bias is None else bias[:, None])  # type: ignore[no-untyped-call]
    return out.view(*a.shape[:-1], out.shape[-1])


class Unrolled(nn.Module):
    """A recurrent layer of torch's, with its parameters under their names, written out step by step."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.shape, self.batch_first = Shape.of(layer), layer.batch_first
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:  # noqa: ANN401 - h, or h and c
        """Run the recurrence over [B, T, in], or [T, B, in]."""
        given = x if self.batch_first else x.transpose(0, 1)
        first = None if hx is None else _first(hx, self.shape.cell)
        seen = unroll(self.shape, dict(self.named_parameters()), given, linear, first=first)
        return _returned(self.shape.cell, seen.output if self.batch_first else seen.output.transpose(0, 1), seen.states)


def _first(hx: Any, cell: str) -> list[State]:  # noqa: ANN401 - h, or h and c
    states = hx if cell == "LSTM" else (hx,)
    return list(zip(*(part.unbind(0) for part in states), strict=True))


def unrolled(model: nn.Module) -> nn.Module:
    """Return a copy whose recurrent layers `torch.func` can look into; the model itself where it has none."""
    found = [
        (name, layer) for name, layer in model.named_modules() if isinstance(layer, KINDS) and layer.proj_size == 0
    ]
    if not found:
        return model
    made = copy.deepcopy(model)
    for name, _ in found:
        layer = made.get_submodule(name)
        assert isinstance(layer, nn.RNNBase)  # noqa: S101 - as found
        if not name:
            return Unrolled(layer)
        made.set_submodule(name, Unrolled(layer))
    return made
