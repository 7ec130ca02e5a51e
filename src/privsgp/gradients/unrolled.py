"""nn.LSTM, nn.GRU and nn.RNN written out step by step, because `torch.func` cannot look into torch's own layers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from privsgp.errors import Refused

State = tuple[Tensor, ...]  # h, or h and c


class _Unrolled(nn.Module):
    """A recurrent layer of torch's, with its parameters under their names."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.cell, self.hidden, self.batch_first = layer.mode, layer.hidden_size, layer.batch_first
        directions = ("", "_reverse") if layer.bidirectional else ("",)
        self.suffixes = [[f"_l{number}{direction}" for direction in directions] for number in range(layer.num_layers)]
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:  # noqa: ANN401 - h, or h and c
        """Run the recurrence over [B, T, in], or [T, B, in]; return outputs, and the last h, or h and c."""
        if not isinstance(x, Tensor):
            remedy = "give it padded sequences, a tensor [B, T, …], and take the output at each one's last step"
            raise Refused(f"a recurrent layer is called with a {type(x).__name__}", remedy)
        x = x if self.batch_first else x.transpose(0, 1)
        first = None if hx is None else list(zip(*(hx if self.cell == "LSTM" else (hx,)), strict=True))
        states: list[State] = []
        for suffixes in self.suffixes:
            outputs = []
            for suffix in suffixes:
                out, last = self._direction(suffix, x, None if first is None else first[len(states)])
                outputs.append(out)
                states.append(last)
            x = torch.cat(outputs, -1)
        ends = tuple(torch.stack(parts) for parts in zip(*states, strict=True))
        return x if self.batch_first else x.transpose(0, 1), ends if self.cell == "LSTM" else ends[0]

    def _direction(self, suffix: str, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Run one layer in one direction; return its outputs and its last state."""
        weights = dict(self.named_parameters())
        inner = linear(x, weights[f"weight_ih{suffix}"], weights.get(f"bias_ih{suffix}"))
        zero = x.new_zeros(*x.shape[:-2], self.hidden)
        now: State = ((zero, zero) if self.cell == "LSTM" else (zero,)) if state is None else state
        steps, outputs = list(range(x.shape[-2])), {}
        for t in reversed(steps) if suffix.endswith("_reverse") else steps:
            outer = linear(now[0], weights[f"weight_hh{suffix}"], weights.get(f"bias_hh{suffix}"))
            now = _cell(self.cell, inner[..., t, :], outer, now)
            outputs[t] = now[0]
        return torch.stack([outputs[t] for t in steps], -2), now


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


def unrolled(model: nn.Module) -> nn.Module:
    """Return a copy whose recurrent layers `torch.func` can look into; the model itself where it has none."""
    if not any(isinstance(layer, nn.RNNBase) for layer in model.modules()):
        return model
    made = copy.deepcopy(model)
    for name, layer in list(made.named_modules()):
        if isinstance(layer, nn.RNNBase) and layer.proj_size == 0:
            if not name:
                return _Unrolled(layer)
            made.set_submodule(name, _Unrolled(layer))
    return made
