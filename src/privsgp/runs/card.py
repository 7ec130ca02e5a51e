"""Metadata in a model's file: shapes, classes, the meaning of outputs, and the privacy of its training.

It stands in the file's metadata, so that a file by itself can be made a model again without unpickling anything.
Nothing in it depends on records, crashes or clocks: the same configuration gives the same bytes. model-card.md, written
with the run, says the same in words, with what was spent and what came out.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import BaseModel, ConfigDict, Field, model_validator
from safetensors import SafetensorError, safe_open

from privsgp import __version__, features
from privsgp.data.images import ImageOptions
from privsgp.data.schema_text import written
from privsgp.data.text import TextOptions
from privsgp.errors import Refused, visible
from privsgp.features.options import SCALES, SCATTERING
from privsgp.files import parsed
from privsgp.runs.budgets import per_node

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from privsgp.runs.config import Config
    from privsgp.runs.problem import Problem
    from privsgp.runs.views import RunView

NAME = "model-card.md"
VERSION = 2
_MOST = 2**26  # numbers in a sample

Shape = Annotated[list[Annotated[int, Field(ge=1)]], Field(max_length=8)]


class Card(BaseModel):
    """The metadata of a model's file."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    version: Literal[2]
    input_shape: Annotated[Shape, Field(min_length=1)]
    target_shape: Shape
    classes: Annotated[int, Field(ge=1, le=2**20)] | None
    loss: Literal["cross-entropy", "binary", "mse", "survival"] | None
    model: dict[str, Any]
    features: dict[str, Any]
    encoder: str | None
    frozen: str | None
    vocabulary: Annotated[int, Field(ge=1)] | None = None
    dtype: Literal["float32", "float64"]
    schema_text: str | None = None
    text: TextOptions | None = None
    images: ImageOptions | None = None
    class_names: list[str] | None = None
    class_weights: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None = None
    privacy: dict[str, Any]

    @model_validator(mode="after")
    def _is_a_sample(self) -> Card:
        if math.prod(self.input_shape) > _MOST:
            raise ValueError(f"a sample of {math.prod(self.input_shape):,} numbers")
        return self


def card(config: Config, problem: Problem) -> dict[str, Any]:
    """Return what the files of a run's models say.

    Guarantee: a function of the configuration, public shapes, and public weights alone.
    """
    d, p, n = config.data, config.privacy, config.data.nodes
    encoder = problem.encoder if config.features.name == "module" else None
    tokens = problem.dataset.vocabulary if d.tokens is None else d.tokens  # of a sample before any encoder
    named = d.images or d.text
    scales = {"scales": SCALES} if config.features.name == SCATTERING else {}  # cards without are of older versions
    bounded = config.private and p.epsilon is not None and not p.nominal  # else model-card.md has ε
    optional = {
        "vocabulary": tokens if isinstance(tokens, int) else None,
        "text": None if d.text is None else d.text.model_dump(),
        "images": None if d.images is None else d.images.model_dump(),
        "class_weights": None if problem.class_weights is None else list(problem.class_weights),
    }
    return {
        "version": VERSION,
        "input_shape": list(problem.sample_shape),
        "target_shape": list(problem.dataset.y.shape[1:]),
        "classes": problem.dataset.classes,
        "loss": problem.loss_name,
        "model": config.model.model_dump(exclude={"loss"}),
        "features": config.features.model_dump(exclude_none=True) | scales,
        "encoder": None if encoder is None else features.digest(encoder),
        "frozen": frozen_digest(problem.model),
        "dtype": config.engine.dtype,
        "schema_text": None if d.schema is None else written(d.schema),
        **{key: value for key, value in optional.items() if value is not None},
        "class_names": None if named is None else named.labels,
        "privacy": {
            "simulation": config.seed is not None,
            "noise": config.private,
            "epsilon": max(per_node(p.epsilon, n)) if bounded else None,
            "delta": max(per_node(p.delta, n)) if config.private else None,
            "relation": p.relation,
            "trust": config.trust,
        }
        | ({} if d.person is None else {"sites_per_person": p.sites_per_person}),
    } | ({} if d.schema is None else {"class_names": d.schema.target.classes})


def frozen_digest(model: nn.Module) -> str | None:
    """Return the SHA-256 of what is in a model and not learnt: constants, which a model's file leaves out."""
    learnt = {name for name, p in model.named_parameters() if p.requires_grad}
    constants = {name: value for name, value in model.state_dict().items() if name not in learnt}
    if not constants:
        return None
    parts = hashlib.sha256()
    for name, value in sorted(constants.items()):
        parts.update(name.encode())
        parts.update(value.detach().cpu().contiguous().numpy().tobytes())
    return parts.hexdigest()


def metadata(card: Any) -> dict[str, str]:  # noqa: ANN401 - a mapping, frozen or not
    """Return a card as the metadata of a file: one entry, since several are written in any order."""
    return {"privsgp": json.dumps(dict(card), sort_keys=True, ensure_ascii=False)}


def read(path: Path) -> dict[str, Any]:
    """Return the card of a model's file; refuse one that has none."""
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get("privsgp", "")
    except (SafetensorError, OSError) as error:
        raise Refused(f"{path} cannot be read: {error}", "name a folder that `privsgp train` wrote") from error
    if not text.startswith("{"):
        raise Refused(f"{path} does not describe its model", "an older release may have written it: train again")
    return parsed(text.encode(), Card, str(path))


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays in a model's file, none of which is read."""
    with safe_open(path, "pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping


def markdown(card: dict[str, Any], view: RunView) -> str:
    """Return model-card.md: what the model is, its metrics, what the run guarantees and what it does not."""
    return TEXTS.get_template(NAME).render(card=card, view=view, version=__version__)


def in_a_line(text: str) -> str:
    """Return words of others so that nobody can take them for a heading, a tag, a link or a picture."""
    return html.escape(" ".join(visible(text).split()), quote=False).replace("](", "]&#40;")


TEXTS = Environment(  # Markdown: `finalize` escapes every value
    loader=PackageLoader("privsgp.report"), autoescape=False, undefined=StrictUndefined, trim_blocks=True,  # noqa: S701
    lstrip_blocks=True, keep_trailing_newline=True, finalize=lambda value: in_a_line(str(value)),
)  # fmt: skip
