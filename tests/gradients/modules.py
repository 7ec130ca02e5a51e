"""Small models for the tests of this room, and the gradients that plain autograd gives, one sample at a time."""

from __future__ import annotations

import copy
from itertools import pairwise
from types import MethodType

import torch
from torch import nn
from torch.nn import functional

from privsgp.gradients import Layout
from privsgp.models import per_sample

cross_entropy = per_sample("cross-entropy")


def mlp(*widths, bias=True, activation=nn.ReLU):
    layers = [layer for i, o in pairwise(widths) for layer in (nn.Linear(i, o, bias=bias), activation())]
    return nn.Sequential(*layers[:-1])


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.inner, self.leave = nn.Linear(6, 5), nn.Linear(5, 5, bias=False), nn.Linear(5, 3)

    def forward(self, x):
        h = functional.relu(self.enter(x))
        return self.leave(h + functional.relu(self.inner(h)))


class Views(nn.Module):
    """Uses the size of its batch for views, and the data in two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = x.view(x.shape[0], -1)
        both = torch.stack([self.first(x), self.second(x)], 1).reshape(x.size(0), 2, 2, 2)
        return self.head(torch.tanh(both.sum(1)).view(len(x), -1))


def frozen_middle():
    model = mlp(6, 5, 4, 3)
    model[2].requires_grad_(requires_grad=False)
    return model


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.leave = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.leave(self.inner(torch.tanh(self.inner(x))))


def tied():
    model = mlp(6, 6, 6, 3)
    model[2].weight = model[0].weight
    return model


class UsesWeight(nn.Module):
    """Calls its layer once, and takes its weight as well."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.leave(functional.linear(torch.tanh(self.enter(x)), self.enter.weight))


def hooked():
    model = mlp(6, 5, 3)
    model[0].register_forward_hook(lambda _layer, _inputs, out: 2 * out)
    return model


def overridden():
    """A layer whose forward is somebody's own."""
    model = mlp(6, 3)
    model[0].forward = MethodType(lambda layer, x: 3 * functional.linear(x, layer.weight, layer.bias), model[0])
    return model


class Sequence(nn.Module):
    """A linear layer on every word of a sentence: three dimensions."""

    def __init__(self):
        super().__init__()
        self.word, self.head = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.word(x.view(len(x), 3, 2))).mean(1))


class Rows(nn.Module):
    """A sample becomes three rows of a longer batch, so rows are not samples."""

    def __init__(self):
        super().__init__()
        self.row = nn.Linear(2, 3)

    def forward(self, x):
        return self.row(x.view(-1, 2)).view(len(x), 3, 3).sum(1)


def convolution():
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.GroupNorm(2, 2), nn.Flatten(), nn.Linear(8, 3))


class OwnParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(self.scale * x)


def partly_frozen():
    model = mlp(6, 5, 3)
    model[0].bias.requires_grad_(requires_grad=False)
    return model


def bias_alone():
    model = mlp(6, 5, 3)
    model[0].weight.requires_grad_(requires_grad=False)
    return model


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.spare = nn.Linear(6, 3), nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)


class Asks(nn.Module):
    """Asks its parameters where and of which type they are."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x.to(next(self.parameters()).device, self.layer.weight.dtype))


class Own(nn.Linear):
    """Its name is all that is new."""


class Attention(nn.Module):
    """Three words, their places in a buffer, attention, and a low-rank share beside a frozen layer (LoRA)."""

    def __init__(self):
        super().__init__()
        self.register_buffer("places", torch.arange(3)[None])
        self.place, self.attend = nn.Embedding(3, 2), nn.MultiheadAttention(2, 1, batch_first=True)
        self.base = nn.Linear(2, 3).requires_grad_(requires_grad=False)
        self.down, self.up, self.norm = nn.Linear(2, 1, bias=False), nn.Linear(1, 3, bias=False), nn.RMSNorm(3)

    def forward(self, x):
        words = x.view(len(x), 3, 2) + self.place(self.places)
        words = words + self.attend(words, words, words, need_weights=False)[0]
        return self.norm(self.base(words) + self.up(self.down(words))).mean(1)


RULED = {
    "in place": lambda: nn.Sequential(nn.Tanh(), nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
    "asks": Asks,
    "subclass": lambda: nn.Sequential(Own(6, 3)),
    "bare linear": lambda: nn.Linear(6, 3),
    "logistic": lambda: mlp(6, 3),
    "mlp": lambda: mlp(6, 5, 3),
    "deep": lambda: mlp(6, 4, 5, 2, 3, activation=nn.Tanh),
    "no bias": lambda: mlp(6, 5, 3, bias=False),
    "flatten": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten(), mlp(6, 4, 3)),
    "scaled input": lambda: nn.Sequential(nn.Tanh(), mlp(6, 4, 3)),
    "residual": Residual,
    "views": Views,
    "frozen layer": frozen_middle,
    "partly frozen": partly_frozen,
    "bias alone": bias_alone,
    "three dimensions": Sequence,
}
UNRULED = {  # and what some of them have that a rule fits
    "called twice": Twice,
    "tied": tied,
    "uses weight": UsesWeight,
    "hooked": hooked,
    "overridden": overridden,
    "rows": Rows,
    "convolution": convolution,
    "own parameter": OwnParameter,
    "unused layer": Unused,
    "attention": Attention,
    "volume": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 1, 2, 3)), nn.Conv3d(1, 2, (1, 2, 2)), nn.Tanh(), nn.Flatten(), nn.Linear(4, 3)
    ),
    "slopes": lambda: mlp(6, 5, 3, activation=nn.PReLU),
    "recurrent": lambda: Recurrent(nn.GRU(2, 4, batch_first=True)),
}
NOT_BY_TORCH_FUNC = ("slopes", "recurrent")  # of several models, without writing them out
NO_LAYER_FITS = ("uses weight", "overridden", "rows")


class Recurrent(nn.Module):
    """A sentence of three words."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.layer(x.view(len(x), 3, 2))[0][:, -1])


def image(channels, height, width, *layers):
    """A sample of numbers as an image, and a linear layer on what comes out."""
    body = nn.Sequential(nn.Unflatten(1, (channels, height, width)), *layers, nn.Flatten())
    outputs = body(torch.zeros(1, channels * height * width)).shape[1]
    return nn.Sequential(*body, nn.Linear(outputs, 3))


def few_pixels():
    """More channels than positions: gradients are kept as factors, and measured by Gram matrices."""
    return image(
        3, 2, 2, nn.Conv2d(3, 12, 3, padding=1), nn.Tanh(), nn.Conv2d(12, 16, 3, padding=1, bias=False), nn.Tanh(),
        nn.Conv2d(16, 8, (3, 1), stride=2, padding=(1, 0)), nn.Tanh(),
    )  # fmt: skip


def many_pixels():
    """Fewer channels than positions: gradients are kept plain."""
    return image(
        1, 3, 4, nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 2, 2, padding="valid", bias=False), nn.Tanh()
    )


def strange_windows():
    return image(
        4, 3, 1, nn.Conv2d(4, 8, (3, 2), padding=(2, 1), dilation=(2, 1), groups=2), nn.Tanh(),
        nn.Conv2d(8, 16, 3, stride=(2, 1), padding=1, groups=4), nn.Tanh(),
        nn.Conv2d(16, 16, (3, 1), padding="same", groups=8, bias=False), nn.Tanh(), nn.Conv2d(16, 24, 1, stride=2),
    )  # fmt: skip


def only_shifts():
    model = image(3, 2, 2, nn.Conv2d(3, 4, 2), nn.GroupNorm(2, 4), nn.Tanh())
    model[1].weight.requires_grad_(requires_grad=False)
    model[2].weight.requires_grad_(requires_grad=False)
    return model


class Shortcut(nn.Module):
    """One input for two convolutions, as in a residual network."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(3, 6, 3, 2, padding=1, bias=False), nn.GroupNorm(3, 6))
        self.beside = nn.Conv2d(3, 6, 1, 2, bias=False)

    def forward(self, x):
        return torch.relu(self.inner(x) + self.beside(x))


class Words(nn.Module):
    """Twelve words, some of them more than once, one of them standing for nothing."""

    def __init__(self, **options):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(5, 4, **options), nn.LayerNorm(4)
        self.inner, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        index = (x * 10).long() % 5
        return self.head(torch.tanh(self.inner(self.norm(self.embedding(index)))).mean(1))


LAYERS = {  # of 12 numbers
    "few pixels": few_pixels,
    "many pixels": many_pixels,
    "strange windows": strange_windows,
    "only shifts": only_shifts,
    "shortcut": lambda: image(3, 2, 2, Shortcut()),
    "group norm": lambda: image(2, 2, 3, nn.Conv2d(2, 6, 1), nn.GroupNorm(3, 6), nn.ReLU(), nn.GroupNorm(1, 6)),
    "layer norm": lambda: image(2, 2, 3, nn.LayerNorm([2, 3]), nn.Tanh(), nn.LayerNorm(3, bias=False)),
    "words": lambda: Words(padding_idx=2),
}
UNRULED_LAYERS = {
    "reflected": lambda: image(1, 3, 4, nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect")),
    "transposed": lambda: image(1, 3, 4, nn.ConvTranspose2d(1, 2, 2)),
    "counted words": lambda: Words(scale_grad_by_freq=True),
}


def build(factory, seed=0, dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return factory().to(dtype)


def around(model, nodes, seed=0):
    """Different models with the architecture of `model`, [nodes, d]."""
    x0 = Layout.of(model).flatten(model)
    return x0 + 0.3 * torch.randn(nodes, len(x0), generator=torch.Generator().manual_seed(seed), dtype=x0.dtype)


def samples(nodes, batch, size=6, classes=3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(nodes, batch, size, generator=generator, dtype=dtype)
    return inputs, torch.randint(classes, (nodes, batch), generator=generator)


def probe(size=6, dtype=torch.float64):
    inputs, targets = samples(1, 4, size, seed=99, dtype=dtype)
    return inputs[0], targets[0]


def plain_gradients(model, loss, z, inputs, targets):
    """∇f(z_i; j) by autograd, one model and one sample at a time, [m, b, d]."""
    layout = Layout.of(model)

    def one(row, x, y):
        alone = copy.deepcopy(model)
        trained = dict(alone.named_parameters())
        with torch.no_grad():
            for name, value in layout.views(row).items():
                trained[name].copy_(value)
        wanted = [trained[name] for name in layout.names]
        parts = torch.autograd.grad(loss(alone(x[None]), y[None]).sum(), wanted, materialize_grads=True)
        return torch.cat([part.flatten() for part in parts])

    nodes = zip(z, inputs, targets, strict=True)
    return torch.stack([torch.stack([one(row, x, y) for x, y in zip(*data, strict=True)]) for row, *data in nodes])
