"""Shares in few bits: what a link carries is rounded, and its sender keeps the rest.

Both ends of a link remember the model z that it carried last, at first x⁰. Of a share (p x, p w) the sender rounds
p x − p w z, stochastically, in blocks with one scale each, and sends p w as it is. Both ends then know the rounded
share r. The sender keeps x − r, so no mass is lost or made, whatever the rounding. As the nodes agree, p x − p w z
becomes small, and the scales with it: a large coordinate that does not change never hides a small one.

Guarantee: r, its codes and its scales, and x − r are functions of x and of public randomness, which is keyed by
public seed, link and step (docs/proofs/rounded-shares.md).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from privsgp.devices import device_of, in_threads, refuse_vast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from privsgp.graph import Graph

BLOCK = 128  # numbers with one scale
_PIECE = 1 << 16  # numbers of a row that are rounded at once: they stay in a core's cache
# Numbers as integers, and how many of their last bits a scale is without.
_WORDS = {torch.float32: (torch.int32, 16), torch.float64: (torch.int64, 48)}


class Carrying(NamedTuple):
    """Links that carry something at a step, one row each."""

    row: Tensor  # of what the link carried last
    number: list[int]  # names the link in public randomness
    source: Tensor  # the row of its sender's x
    share: Tensor  # [links, 1], float64


class Rounding:
    """Rounds the shares of links that begin or end among the nodes of this process; `x` are these nodes' x⁰."""

    def __init__(self, bits: int, seed: int, graph: Graph, x: Tensor, here: range) -> None:
        self.bits, self.key, self.nodes, self.here = bits, seed % 2**128, graph.nodes, here
        links = [link for link in graph.links() if link[0] in here or link[1] in here]
        what = f"transport.bits = {bits} remembers a model for each of {len(links)} links, which needs"
        refuse_vast(len(links) * x[0].nbytes, what, "take a graph with fewer links, or transport.bits = 32")
        self.rows = {link: row for row, link in enumerate(links)}
        self.start, self.carried = x[0].clone(), x[:1].repeat(len(links), 1)
        self.width = width(bits, x.shape[1])

    def carrying(self, links: Iterable[tuple[int, int]], shares: Iterable[float]) -> Carrying:
        """Return links that carry these shares at a step; senders elsewhere have no row of x."""
        links, like = list(links), self.carried
        row = torch.tensor([self.rows[link] for link in links], dtype=torch.int64, device=like.device)
        source = torch.tensor([j - self.here.start for j, _ in links], dtype=torch.int64, device=like.device)
        share = torch.tensor(list(shares), dtype=torch.float64, device=like.device)[:, None]
        return Carrying(row, [j * self.nodes + i for j, i in links], source, share)

    def codes(self, k: int, links: Carrying, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return what links carry at step k: codes [links, width] and weights p w [links]."""
        weights = w[links.source] * links.share[:, 0]
        codes = torch.empty(len(weights), self.width, dtype=torch.uint8, device=x.device)
        self._each(partial(self._encode, k, links, x, weights, codes), len(weights))
        return codes, weights

    def shares(self, links: Carrying, codes: Tensor, weights: Tensor) -> Tensor:
        """Return the rounded shares [links, d] that codes are; both ends remember them."""
        shares = self.carried.new_empty(len(weights), self.carried.shape[1])
        self._each(partial(self._decode, links, codes, weights, shares), len(weights))
        return shares

    def begin(self, link: tuple[int, int], sums: Tensor) -> None:
        """Remember, at an end of a link, the mean of all that it has carried, by its sums [d + 1]; at first x⁰."""
        mean = self.start if float(sums[-1]) == 0 else (sums[:-1] / sums[-1]).to(self.start.dtype)
        self.carried[self.rows[link]] = mean

    def _each(self, work: partial[None], links: int) -> None:
        """Do some work for each link, a few at a time: of a small model as many as a core's cache holds."""
        tall = device_of(self.carried).rows_at_once(self.carried, _PIECE)
        in_threads(work, [slice(top, min(top + tall, links)) for top in range(0, links, tall)])

    def _encode(self, k: int, links: Carrying, x: Tensor, weights: Tensor, codes: Tensor, rows: slice) -> None:
        bits = [np.random.Philox(key=self.key, counter=[0, 0, number, k]) for number in links.number[rows]]
        source, row, w = links.source[rows], links.row[rows], weights[rows, None].to(x.dtype)
        share = links.share[rows].to(x.dtype)
        for piece in pieces(x.shape[1]):
            news = x[:, piece][source].mul_(share).sub_(self.carried[:, piece][row].mul_(w))
            encode(news, uniform(bits, news), codes[rows], self.bits, piece, x.shape[1])

    def _decode(self, links: Carrying, codes: Tensor, weights: Tensor, shares: Tensor, rows: slice) -> None:
        row, w = links.row[rows], weights[rows, None].to(shares.dtype)
        for piece in pieces(shares.shape[1]):
            news = decode(codes[rows], self.bits, piece, shares)
            shares[rows, piece] = news.add_(self.carried[:, piece][row].mul_(w))
            self.carried[row, piece] = news.div_(w)


def width(bits: int, numbers: int) -> int:
    """Return how many bytes so many numbers take: a scale of two bytes for each block, then the codes."""
    return -(-numbers // BLOCK) * (2 + BLOCK * bits // 8)


def pieces(numbers: int) -> Iterator[slice]:
    """Yield the numbers of a row that are rounded at once: whole blocks, but for the last one."""
    for start in range(0, numbers, _PIECE):
        yield slice(start, min(start + _PIECE, numbers))


def uniform(bits: list[np.random.Philox], like: Tensor) -> Tensor:
    """Return numbers between 0 and 1 for the blocks of each row of `like`, from 16 public bits each."""
    padded = -(-like.shape[1] // BLOCK) * BLOCK
    words = np.stack([one.random_raw(padded // 4) for one in bits])
    drawn = torch.from_numpy(words.view(np.int16)).to(like.device).to(like.dtype)
    return drawn.add_(32768.5).div_(65536)


def encode(news: Tensor, u: Tensor, codes: Tensor, bits: int, piece: slice, numbers: int) -> None:
    """Round a part of rows to multiples of each block's scale, and write codes and scales; `news` is overwritten.

    A number between two multiples becomes the upper one with the probability that keeps its mean.
    """
    most, kind, rows = 2 ** (bits - 1) - 1, *_WORDS[news.dtype][:1], len(news)
    if news.shape[1] < u.shape[1]:
        news = torch.nn.functional.pad(news, (0, u.shape[1] - news.shape[1]))
    blocks, shift = news.view(rows, -1, BLOCK), _WORDS[news.dtype][1]
    least = blocks.abs().amax(2).div_(most).clamp_(min=torch.finfo(news.dtype).tiny)
    top = (least.view(kind) + (2**shift - 1)) >> shift  # rounded up: no number is more than `most` scales
    scale = (top << shift).view(news.dtype)[:, :, None]
    q = blocks.div_(scale).add_(u.view(blocks.shape)).floor_().clamp_(-most, most)
    scales, body = _places(bits, piece, numbers)
    codes[:, scales] = top.to(torch.int16).view(torch.uint8)
    if bits == 4:
        pairs = q.add_(8).to(torch.uint8).view(rows, -1, 2)
        codes[:, body] = pairs[:, :, 0] * 16 + pairs[:, :, 1]
    else:
        codes[:, body] = q.to(torch.int8 if bits == 8 else torch.int16).view(rows, -1).view(torch.uint8)


def decode(codes: Tensor, bits: int, piece: slice, like: Tensor) -> Tensor:
    """Return what a part of codes says, in the dtype of `like`: multiples of the scales."""
    (scales, body), (kind, shift) = _places(bits, piece, like.shape[1]), _WORDS[like.dtype]
    scale = (codes[:, scales].contiguous().view(torch.int16).to(kind) << shift).view(like.dtype)[:, :, None]
    packed = codes[:, body].contiguous()
    if bits == 4:
        q = torch.stack([packed >> 4, packed & 15], 2).to(like.dtype).sub_(8)
    else:
        q = packed.view(torch.int8 if bits == 8 else torch.int16).to(like.dtype)
    return q.view(len(codes), -1, BLOCK).mul_(scale).view(len(codes), -1)[:, : piece.stop - piece.start]


def _places(bits: int, piece: slice, numbers: int) -> tuple[slice, slice]:
    """Return where the scales and the codes of a part are in a row of bytes: all scales come first."""
    first, last, head = piece.start // BLOCK, -(-piece.stop // BLOCK), -(-numbers // BLOCK) * 2
    size = BLOCK * bits // 8
    return slice(2 * first, 2 * last), slice(head + first * size, head + last * size)
