"""Train the encoder behind `features.name = "synthetic-encoder"` on made-up images only, and write its file.

No photograph, no data set and no other network enters: images are drawn from random numbers. A third come from an
untrained pyramid of random convolutions, a new one for each image. Two thirds are dead leaves: discs, boxes and
diamonds with one palette per image, whose textures are cut from such pyramids and from 1/f noise. The network learns to
give two random views of an image the same direction, and to spread all images over the sphere (Wang and Isola 2020).

    python experiments/synthetic_encoder.py --out FOLDER [--seconds 480] [--iterations 20000]

After `--seconds` it stops; the same command continues. Images are drawn again from the seed. It needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import affine_grid, conv2d, grid_sample, interpolate, leaky_relu, normalize

from privsgp.features.encoder import SCALE, WIDTHS, Encoder, standardised

SIDE, SEEN = 48, 32  # pixels of a made-up image, and of a view
AT_ONCE = 500  # images drawn at a time
BATCH, RATE, WARM_UP = 1024, 0.48, 400
KEPT = 1024  # directions for whitening
COUNTED = 40_000  # images that they are measured on
LOOK_UNLIKE = 2.0  # t of the uniformity loss


def packed(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return arrays of more than one axis as whole numbers of 8 bits, with one scale per row; others as float32."""
    out = {}
    for name, value in values.items():
        if value.dim() < 2:
            out[name] = value.float()
            continue
        largest = value.float().flatten(1).abs().amax(1).clamp(min=1e-12) / 127
        out[name + SCALE] = largest
        out[name] = (value.float() / largest.view(-1, *[1] * (value.dim() - 1))).round().to(torch.int8)
    return {name: value.contiguous().cpu() for name, value in out.items()}


class Images:
    """Images [count, 3, 48, 48] from random numbers."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)
        line = torch.linspace(-1, 1, SIDE, device=device)
        self.row, self.column = torch.meshgrid(line, line, indexing="ij")
        frequency = torch.fft.fftfreq(SIDE, device=device)
        self.frequency = torch.sqrt(frequency[:, None] ** 2 + frequency[None] ** 2)
        self.frequency[0, 0] = 1 / SIDE

    def uniform(self, *shape: int) -> Tensor:
        """Return numbers between 0 and 1."""
        return torch.rand(*shape, device=self.device, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        """Return normal numbers."""
        return torch.randn(*shape, device=self.device, generator=self.generator)

    def bank(self, count: int) -> Tensor:
        """Return all images, as bytes and in random order."""
        out = torch.empty(count, 3, SIDE, SIDE, dtype=torch.uint8, device=self.device)
        for turn, start in enumerate(range(0, count, AT_ONCE)):
            images = self.pyramids(AT_ONCE) if turn % 3 == 0 else self.leaves(AT_ONCE)
            if turn % 4 == 2:
                share = 0.4 * self.uniform(AT_ONCE, 1, 1, 1)
                images = (1 - share) * images + share * self.pyramids(AT_ONCE)
            out[start : start + AT_ONCE] = (255 * images).to(torch.uint8)[: count - start]
        return out[torch.randperm(count, device=self.device, generator=self.generator)]

    def pyramids(self, count: int, width: int = 12) -> Tensor:
        """Return the outputs of `count` untrained networks of random convolutions, from 4 to 48 pixels."""
        x = self.normal(1, count * width, 4, 4)
        for side in (6, 12, 24, 48):
            x = interpolate(x, size=(side, side), mode="bilinear", align_corners=False)
            k = 3 if side < 24 else 5
            filters = self.normal(count * width, width, k, k) * (self.uniform(count * width, width, 1, 1) < 0.35)
            x = conv2d(x, filters / math.sqrt(k * k * width * 0.35), padding=k // 2, groups=count)
            grain = 0.15 * self.uniform(1, count * width, 1, 1)
            x = x + 0.4 * self.normal(1, count * width, 1, 1) + grain * self.normal(1, count * width, side, side)
            maps = leaky_relu(x, 0.2).view(count, width, side, side)
            maps = (maps - maps.mean((2, 3), keepdim=True)) / (maps.std((2, 3), keepdim=True) + 0.2)
            x = (maps * torch.exp(0.6 * self.normal(count, width, 1, 1))).view(1, count * width, side, side)
        x = conv2d(x, self.normal(count * 3, width, 1, 1), groups=count).view(count, 3, SIDE, SIDE)
        grey = self.uniform(count, 1, 1, 1)
        return stretched(grey * x.mean(1, keepdim=True) + (1 - grey) * x)

    def pink(self, count: int) -> Tensor:
        """Return noise with a 1/f spectrum."""
        power = 0.5 + 1.5 * self.uniform(count, 1, 1, 1)
        spectrum = torch.fft.fft2(self.normal(count, 3, SIDE, SIDE)) * self.frequency[None, None] ** (-power)
        return stretched(torch.fft.ifft2(spectrum).real)

    def leaves(self, count: int, shapes: int = 40) -> Tensor:
        """Return images covered by shapes, the largest first, with textures and shading."""
        base, spread = self.uniform(count, 3, 1, 1), 0.15 + 0.6 * self.uniform(count, 1, 1, 1)
        textures = [*(self.pyramids(count) for _ in range(3)), self.pink(count)]
        image = (self._colour(base, spread) + 0.5 * (textures[3] - 0.5)).clamp(0, 1)
        for i in range(shapes):
            radius = 0.95 * self.uniform(count, 1, 1) ** 2 * (1 - 0.75 * i / shapes) + 0.05
            along, inside = self._shape(count, radius)
            x, y = (int(one) for one in torch.randint(SIDE, (2,), generator=torch.Generator().manual_seed(i)))
            texture = torch.roll(textures[i % 4], (x, y), (2, 3))
            strength = 1.2 * self.uniform(count, 1, 1, 1) ** 2
            slope = 0.6 * (self.uniform(count, 1, 1, 1) - 0.5)
            shading = slope * (along / radius.clamp(min=0.1))[:, None].clamp(-1.5, 1.5)
            leaf = (self._colour(base, spread) + strength * (texture - 0.5) + shading).clamp(0, 1)
            image = image * (1 - inside) + leaf * inside
        return image

    def _colour(self, base: Tensor, spread: Tensor) -> Tensor:
        return (base + spread * (self.uniform(len(base), 3, 1, 1) - 0.5)).clamp(0, 1)

    def _shape(self, count: int, radius: Tensor) -> tuple[Tensor, Tensor]:
        """Return the coordinate along each shape, and how far each pixel is inside it."""
        x, y = (2.4 * self.uniform(count, 1, 1) - 1.2 for _ in range(2))
        angle, aspect = math.pi * self.uniform(count, 1, 1), torch.exp(0.4 * self.normal(count, 1, 1))
        dx, dy = self.column - x, self.row - y
        u = (dx * torch.cos(angle) + dy * torch.sin(angle)) / aspect
        v = (dy * torch.cos(angle) - dx * torch.sin(angle)) * aspect
        wave = torch.sin(3 * v / radius + 6 * self.uniform(count, 1, 1)) * (self.uniform(count, 1, 1) < 0.5)
        u = u + 0.25 * radius * wave
        kind = self.uniform(count, 1, 1)
        box, diamond = torch.maximum(u.abs(), v.abs()), u.abs() + v.abs()
        distance = torch.where(kind < 0.6, torch.sqrt(u * u + v * v), torch.where(kind < 0.85, box, diamond))
        edge = 15 + 40 * self.uniform(count, 1, 1)
        return u, torch.sigmoid((radius - distance) * edge)[:, None]


def stretched(x: Tensor) -> Tensor:
    """Return images whose values fill 0 … 1."""
    low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
    return (x - low) / (high - low + 1e-6)


def views(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return one random view of each image: a crop, a mirror image, other colours, grey."""
    count = len(x)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(count, *shape, device=x.device, generator=generator)

    area, aspect = 0.12 + 0.88 * uniform(), torch.exp((uniform() - 0.5) * 2 * math.log(4 / 3))
    height, width = (area / aspect).sqrt().clamp(max=1), (area * aspect).sqrt().clamp(max=1)
    place = torch.zeros(count, 2, 3, device=x.device)
    place[:, 0, 0] = torch.where(uniform() < 0.5, -width, width)
    place[:, 0, 2], place[:, 1, 1] = (2 * uniform() - 1) * (1 - width), height
    place[:, 1, 2] = (2 * uniform() - 1) * (1 - height)
    grid = affine_grid(place, [count, 3, SEEN, SEEN], align_corners=False)
    y = grid_sample(x.float() / 255, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    grey_of = torch.tensor([0.299, 0.587, 0.114], device=x.device).view(1, 3, 1, 1)

    def stretch() -> Tensor:
        return 1 + 0.4 * (2 * uniform(1, 1, 1) - 1)

    z = y * stretch()
    mean = z.mean((1, 2, 3), keepdim=True)
    z = (z - mean) * stretch() + mean
    grey = (z * grey_of).sum(1, keepdim=True)
    z = _turned((z - grey) * stretch() + grey, (uniform() - 0.5) * 0.4 * math.pi)
    y = torch.where(uniform(1, 1, 1) < 0.8, z, y)
    y = torch.where(uniform(1, 1, 1) < 0.2, (y * grey_of).sum(1, keepdim=True), y)
    return y.clamp(0, 1)


def _turned(x: Tensor, angle: Tensor) -> Tensor:
    """Turn the colours of each image around the grey axis."""
    c, s, third, root = angle.cos(), angle.sin(), 1 / 3, math.sqrt(1 / 3)
    same, up, down = c + third * (1 - c), third * (1 - c) - root * s, third * (1 - c) + root * s
    turn = torch.stack([same, up, down, down, same, up, up, down, same], 1).view(-1, 3, 3)
    return torch.einsum("bij,bjhw->bihw", turn, x)


class Learner(nn.Module):
    """The encoder with the head that only training needs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Sequential(nn.Linear(WIDTHS[-1], WIDTHS[-1]), nn.ReLU(), nn.Linear(WIDTHS[-1], 128))

    def forward(self, x: Tensor) -> Tensor:
        """Return a direction for each image."""
        return normalize(self.head(self.encoder(x)[1].mean((2, 3))).float(), dim=1)


def loss_of(a: Tensor, b: Tensor) -> Tensor:
    """Return alignment and uniformity of two views' directions."""
    count = len(a)
    pairs = [torch.exp(-LOOK_UNLIKE * (2 - 2 * z @ z.T)).sum() - count for z in (a, b)]
    uniformity = sum(torch.log(one / (count * (count - 1))) for one in pairs) / 2
    return (a - b).pow(2).sum(1).mean() + uniformity


def train(bank: Tensor, options: argparse.Namespace) -> Encoder | None:
    """Train until the end or until the time is over; None if there is more to do."""
    torch.manual_seed(options.seed)
    started = time.monotonic()
    learner = Learner().to(bank.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(learner.parameters(), RATE, momentum=0.9, weight_decay=1e-4, nesterov=True)
    first = restore(options.out, learner, optimizer)
    forward = torch.compile(learner) if options.compile else learner
    for iteration in range(first, options.iterations):
        if time.monotonic() - started > options.seconds:
            save(options.out, learner, optimizer, iteration)
            print(f"stopped at iteration {iteration}: run the same command again", flush=True)
            return None
        share = iteration / options.iterations
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (1 + iteration) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * share))
        generator = torch.Generator(bank.device).manual_seed(options.seed * 10**9 + iteration)
        rows = torch.randint(len(bank), (BATCH,), device=bank.device, generator=generator)
        seen = views(bank[rows].repeat(2, 1, 1, 1), generator)
        with torch.autocast("cuda", torch.bfloat16):
            out = forward(standardised(seen).to(memory_format=torch.channels_last))
        loss = loss_of(*out.split(BATCH))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if iteration % 1000 == 999:
            print(f"iteration {iteration + 1}: loss {loss.item():.3f}, {time.monotonic() - started:.0f} s", flush=True)
    return learner.encoder.eval()


def save(folder: Path, learner: Learner, optimizer: torch.optim.SGD, iteration: int) -> None:
    """Write what is needed to continue."""
    state = {"weights": learner.state_dict(), "optimizer": optimizer.state_dict(), "iteration": iteration}
    torch.save(state, folder / "unfinished.tmp")
    (folder / "unfinished.tmp").replace(folder / "unfinished.pt")


def restore(folder: Path, learner: Learner, optimizer: torch.optim.SGD) -> int:
    """Continue from what was saved; return the iteration to begin with."""
    path = folder / "unfinished.pt"
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    learner.load_state_dict(state["weights"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["iteration"])


@torch.no_grad()
def measured(encoder: Encoder, bank: Tensor) -> dict[str, Tensor]:
    """Return mean, principal directions and deviations of the features of made-up images, mirror images added."""
    parts = []
    for part in torch.split(bank[:COUNTED], AT_ONCE):
        x = interpolate(part.float() / 255, (SEEN, SEEN), mode="bilinear", antialias=True)
        parts.append(encoder.kept(x) + encoder.kept(x.flip(-1)))
    y = torch.cat(parts).double()
    mean, spread = y.mean(0), y.std(0) + 1e-6
    y = (y - mean) / spread
    values, vectors = torch.linalg.eigh(y.T @ y / len(y))
    values, vectors = values.flip(0)[:KEPT].clamp(min=1e-12), vectors.flip(1)[:, :KEPT]
    vectors = vectors * vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()
    return {"mean": mean, "spread": spread, "directions": vectors.T, "deviation": values.sqrt()}


def main() -> None:
    """Draw the images, train, and write the file when training is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480.0, help="stop after this time of training")
    parser.add_argument("--iterations", type=int, default=20_000)
    parser.add_argument("--images", type=int, default=320_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    started = time.monotonic()
    bank = Images(torch.device("cuda"), options.seed).bank(options.images)
    torch.cuda.synchronize()
    print(f"{len(bank)} images in {time.monotonic() - started:.0f} s", flush=True)
    encoder = train(bank, options)
    if encoder is None:
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    arrays = encoder.state_dict() | measured(encoder, bank)
    kept = {name: value for name, value in arrays.items() if not name.endswith("num_batches_tracked")}
    about = {"iterations": options.iterations, "images": options.images, "seed": options.seed}
    metadata = {"made_by": "experiments/synthetic_encoder.py", "licence": "Apache-2.0", "settings": json.dumps(about)}
    save_file(packed(kept), options.out / "synthetic-encoder.safetensors", metadata)
    print(f"wrote {options.out / 'synthetic-encoder.safetensors'}", flush=True)


if __name__ == "__main__":
    main()
