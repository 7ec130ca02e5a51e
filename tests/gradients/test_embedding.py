from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from privsgp.gradients.rules.embedding import _Lookups


def lookups(seed, words):
    generator = torch.Generator().manual_seed(seed)
    delta = torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64)
    return _Lookups(delta, torch.randint(words, (2, 3, 4), generator=generator), 7)


def one_hot(piece):
    """Σ_t e_{i_t} ⊗ δ_t."""
    hot = torch.nn.functional.one_hot(piece.input, piece.rows).to(piece.delta.dtype)
    return torch.einsum("mbtr,mbte->mbre", hot, piece.delta).flatten(2)


@given(seed=st.integers(0, 2**32), words=st.integers(1, 7))
def test_what_is_read_off_the_factors_is_true_of_the_gradients(seed, words):
    piece = lookups(seed, words)
    expected = one_hot(piece)
    assert piece.size == expected.shape[-1] == 35
    torch.testing.assert_close(piece.dense(), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(piece.squared_norm(), expected.square().sum(-1), rtol=1e-10, atol=1e-13)
    out = torch.full((2, 36), torch.nan, dtype=torch.float64)
    piece.sum_into(out[:, 1:])
    torch.testing.assert_close(out[:, 1:], expected.sum(1), rtol=1e-12, atol=1e-13)


def test_words_that_are_the_data_are_not_kept():
    piece = lookups(0, 7)
    assert list(piece.factors()) == ["delta", "input"]
    piece.input_is_data = True
    assert list(piece.factors()) == ["delta"]
