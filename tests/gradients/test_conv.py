"""What a convolution's rule passes back."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import conv2d

from privsgp.gradients.positions import Window
from privsgp.gradients.rules.conv import input_gradient

WINDOWS = [
    Window((3, 3), padding=(1, 1)),
    Window((3, 2), dilation=(2, 1)),
    Window((1, 1), padding=(1, 0)),  # around the turned window there would be less than nothing
    Window((3, 3), (2, 1), (1, 1), groups=2),
    Window((2, 3), padding=(0, 2), groups=2),
]


@pytest.mark.parametrize("window", WINDOWS)
def test_the_gradient_by_the_input_is_that_of_autograd(window):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(4, 3 * 4, 7, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(3 * 6, 4 // window.groups, *window.kernel, dtype=torch.float64, generator=generator)
    out = conv2d(a, weight, None, window.stride, window.padding, window.dilation, 3 * window.groups)
    delta = torch.randn(out.shape, dtype=torch.float64, generator=generator)
    (wanted,) = torch.autograd.grad(out, a, delta)
    torch.testing.assert_close(input_gradient(delta, weight, a.shape, window, 3), wanted, rtol=1e-12, atol=1e-12)
