"""Noise + update + mix of 16 × 11.17 M weights on a GPU: our kernel, eager torch, and the time its bytes take."""

from __future__ import annotations

import torch
from triton.testing import do_bench

from privsgp import graph
from privsgp.engine.step import peers
from privsgp.kernels import push
from privsgp.randomness.on_device import philox_key
from privsgp.transport.in_process import InProcess

N, D = 16, 11_173_962


def main() -> None:
    """Measure and print."""
    device = torch.device("cuda")
    x, g, out, z = torch.randn(4, N, D, device=device)
    w, sigma = torch.ones(N, device=device, dtype=torch.float64), torch.full((N,), 0.1, device=device)
    network, key, spare = graph.make("exponential", N), philox_key(0, device), w.clone()
    source, share = (torch.from_numpy(a).to(device) for a in peers(network, 1))
    mix, nodes = InProcess(network, x).mix, torch.arange(N, device=device)

    def any_graph() -> None:
        push.push(
            x, g, w, out=(out, spare, z), sigma=sigma, source=source, share=share,
            key=key, step=1, gamma=0.1,
        )  # fmt: skip

    def eager() -> None:
        noised = torch.randn_like(g).mul_(sigma[:, None]).add_(g)
        mixed, weights = mix(1, x.sub(noised, alpha=0.1), w)
        torch.div(mixed, weights.float()[:, None], out=z)

    took = {
        "kernel": do_bench(any_graph),
        "eager torch": do_bench(eager),
        "noise alone, kernel": do_bench(lambda: push.fill_normal(out, nodes, key, 1)),
        "noise alone, torch": do_bench(out.normal_),
        "one copy": do_bench(lambda: out.copy_(x)),
    }
    took["6·n·d·4 bytes at copy bandwidth"] = 3 * took["one copy"]  # a copy reads and writes n·d·4 bytes
    for name, ms in took.items():
        print(f"{name:34s} {ms:8.3f} ms")


if __name__ == "__main__":
    main()
