from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from privsgp.gradients.product import Through, no_tf32, product


def layer(a, w, bias):
    return Through.apply(a, lambda a: product(a, w.transpose(1, 2), bias), product, w)


LAYOUTS = [(start, size) for size in (1, 2, 3, 5) for start in range(0, 8, size)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("b", "i", "o"), [(1, 33, 7), (5, 33, 7), (16, 33, 1), (8, 17, 10), (24, 64, 10), (3, 784, 19)]
)
def test_a_product_has_the_same_bits_wherever_its_matrix_stands(b, i, o, dtype):
    generator = torch.Generator().manual_seed(0)
    # weights lie in rows of an odd length, as they do in X
    a, delta = (torch.randn(8, b, size, generator=generator, dtype=dtype) for size in (i, o))
    rows, bias = (torch.randn(8, size, generator=generator, dtype=dtype) for size in (o * i + 1, o))

    def products(block):
        w = rows[block][:, 1:].reshape(-1, o, i)
        forward, back = layer(a[block], w, bias[block][:, None]), product(delta[block], w)
        return forward, back, product(delta[block].transpose(1, 2), a[block]), product(a[block], w.transpose(1, 2))

    whole = products(slice(0, 8))
    for start, size in LAYOUTS:
        block = slice(start, start + size)
        for part, every in zip(products(block), whole, strict=True):
            assert torch.equal(part, every[block])


def test_it_is_the_product():
    generator = torch.Generator().manual_seed(0)
    for nodes in (1, 3):
        a, w = torch.randn(nodes, 5, 7, generator=generator), torch.randn(nodes, 3, 7, generator=generator)
        bias = torch.randn(nodes, 1, 3, generator=generator)
        expected = torch.einsum("nbi,noi->nbo", a, w)
        torch.testing.assert_close(product(a, w.transpose(1, 2)), expected)
        torch.testing.assert_close(product(a, w.transpose(1, 2), bias), expected + bias)


def test_the_way_back_is_its_derivative():
    generator = torch.Generator().manual_seed(0)
    for nodes in (1, 3):
        a = torch.randn(nodes, 4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
        w = torch.randn(nodes, 3, 5, generator=generator, dtype=torch.float64)
        bias = torch.randn(nodes, 1, 3, generator=generator, dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda a, w=w, bias=bias: layer(a, w, bias), (a,))


@pytest.mark.parametrize("shape", [(10, 72, 64), (72, 64, 10), (7, 33, 9), (72, 64, 1), (64, 48, 785), (10, 264, 64)])
def test_a_product_has_the_same_bits_with_any_number_of_threads(shape):
    rows, inner, columns = shape
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(16, rows, inner, generator=generator), torch.randn(16, inner, columns, generator=generator)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results += [product(a, b), product(a.transpose(1, 2).contiguous().transpose(1, 2), b)]
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[0], results[4])
    assert torch.equal(results[1], results[3])
    assert torch.equal(results[1], results[5])


@pytest.fixture
def allowed():
    """What lets a GPU multiply in TF32, switched on as the engine does."""
    setting = torch.backends.cuda.matmul
    before, setting.allow_tf32 = setting.allow_tf32, True
    yield setting
    setting.allow_tf32 = before


def test_threads_on_a_cpu_leave_what_is_set_for_a_gpu_alone(allowed):
    """One that enters while another is inside would find its setting, and leave it behind."""
    first_is_inside, second_is_inside, first_has_left = threading.Event(), threading.Event(), threading.Event()

    def first():
        with no_tf32(torch.zeros(1)):
            first_is_inside.set()
            second_is_inside.wait(10)
        first_has_left.set()

    def second():
        first_is_inside.wait(10)
        with no_tf32(torch.zeros(1)):
            second_is_inside.set()
            first_has_left.wait(10)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(first), threads.submit(second)]:
            done.result()
    assert allowed.allow_tf32


def test_products_on_a_gpu_are_not_tf32_and_what_was_set_comes_back(allowed):
    with no_tf32(torch.zeros(1, device="meta")):  # no CPU: as good as a GPU here
        assert not allowed.allow_tf32
    assert allowed.allow_tf32
