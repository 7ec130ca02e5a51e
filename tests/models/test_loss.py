from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from privsgp.errors import Refused
from privsgp.models import correct, outputs, per_sample, task


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


LABELS = torch.tensor([0, 2, 1, 2, 0])
CASES = [
    ("cross-entropy", random(5, 3), LABELS, lambda o, t: functional.cross_entropy(o, t, reduction="none")),
    ("binary", random(5, 1), LABELS // 2, lambda o, t: -torch.log(((2 * t - 1) * o[:, 0]).sigmoid())),
    ("mse", random(5, 2), random(2, 5).T, lambda o, t: ((o - t) ** 2).sum(1) / 2),
    ("mse", random(5, 1), random(5), lambda o, t: (o[:, 0] - t) ** 2),
]


@pytest.mark.parametrize(("name", "out", "target", "expected"), CASES)
def test_values(name, out, target, expected):
    torch.testing.assert_close(per_sample(name)(out, target), expected(out, target))


@pytest.mark.parametrize(("name", "out", "target", "expected"), CASES)
def test_any_leading_axes(name, out, target, expected):
    loss = per_sample(name)
    flat = loss(out, target)
    nodes = loss(torch.stack([out, out.flip(0)]), torch.stack([target, target.flip(0)]))
    torch.testing.assert_close(nodes, torch.stack([flat, flat.flip(0)]))
    torch.testing.assert_close(torch.func.vmap(loss)(out, target), flat)


def test_correct():
    argmax, threshold = correct("cross-entropy"), correct("binary")
    assert argmax is not None
    assert threshold is not None
    assert argmax(torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.tensor([1, 1])).tolist() == [True, False]
    assert threshold(torch.tensor([[3.0], [-1.0], [-1.0]]), torch.tensor([1, 0, 1])).tolist() == [True, True, False]
    assert correct("mse") is None


def test_a_sure_and_wrong_prediction_has_a_finite_loss():
    for name, out in (("binary", [[-1e4]]), ("cross-entropy", [[1e4, 0.0]])):
        assert per_sample(name)(torch.tensor(out), torch.tensor([1])).item() == pytest.approx(1e4)


@pytest.mark.parametrize(
    ("name", "classes", "shape", "count"),
    [("cross-entropy", 10, (), 10), ("binary", 2, (), 1), ("mse", None, (), 1), ("mse", None, (3,), 3)],
)
def test_outputs(name, classes, shape, count):
    assert outputs(name, classes=classes, target_shape=shape) == count


def test_tasks():
    assert [task(name) for name in ("cross-entropy", "binary", "mse")] == ["classification"] * 2 + ["regression"]


def test_refuses():
    with pytest.raises(Refused, match=r"'binary' needs two classes, and the data have 10"):
        outputs("binary", classes=10, target_shape=())
    with pytest.raises(Refused, match=r"'cross-entropy' needs at least two classes, and the data have 1"):
        outputs("cross-entropy", classes=1, target_shape=())
    with pytest.raises(Refused, match=r"model.loss = 'hinge' is unknown\n.*mse"):
        per_sample("hinge")
