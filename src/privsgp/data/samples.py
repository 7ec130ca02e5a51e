"""Data from Python as arrays: tensors, lists, torch's map-style data sets.

A data set is read once, from its first item to its last; what random transforms make of an item is then fixed. Nothing
of a loader is used but its data set: batches are drawn here, by secret coins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import data as torch_data

from privsgp.data.dataset import array
from privsgp.data.files import NPZ
from privsgp.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INPUTS, _MASK, _LABELS = ("input_ids", "pixel_values"), "attention_mask", ("label", "labels")


def is_dataset(given: object) -> bool:
    """Tell whether this is torch's: a data set, or a loader that has one."""
    return isinstance(given, torch_data.Dataset | torch_data.DataLoader)


def are_sites(given: object) -> bool:
    """Tell whether this is a list of what each node brings: data sets, pairs (x, y), or files."""
    kinds = (torch_data.Dataset, torch_data.DataLoader, tuple, str, Path)
    if not isinstance(given, list):
        return False
    return bool(given) and all(isinstance(one, kinds) or hasattr(one, "column_names") for one in given)


def pair(given: Any) -> tuple[Any, ...]:  # noqa: ANN401 - whatever was brought
    """Return (x, y), or (x, y, x_test, y_test), of what one node or all of them together bring."""
    if isinstance(given, torch_data.DataLoader):
        given = given.dataset
    if hasattr(given, "column_names"):
        given = _columns(given)
    if isinstance(given, torch_data.Dataset):
        return tuple(plain(value, key) for value, key in zip(_items(given), NPZ, strict=False))
    if not isinstance(given, Sequence) or len(given) not in (2, 4):
        many = f" of {len(given)}" if isinstance(given, Sequence) else ""
        remedy = "give (x, y) or (x, y, x_test, y_test), a torch Dataset, a list of these or a mapping {node: …}"
        raise Refused(f"data is a {type(given).__name__}{many}", remedy)
    return tuple(plain(value, key) for value, key in zip(given, NPZ, strict=False))


def plain(value: Any, key: str) -> Any:  # noqa: ANN401 - whatever was brought
    """Return an array in the place of a tensor; refuse several inputs."""
    if isinstance(value, Mapping) or (isinstance(value, tuple) and any(np.ndim(one) > 1 for one in value)):
        raise _several(key)
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return array(value, key)


def _columns(given: Any) -> tuple[NDArray[Any], NDArray[Any]]:  # noqa: ANN401 - a data set of Hugging Face
    """Return inputs and labels by the names of their columns; token ids with their mask, if there is one, [N, 2, T]."""
    names = given.column_names
    inputs, label = (next((n for n in known if n in names), None) for known in (_INPUTS, _LABELS))
    if inputs is None or label is None:
        remedy = "give its columns: (data['text_ids'], data['stars'])"
        raise Refused(f"a data set with the columns {names} without input_ids or pixel_values, and label", remedy)
    columns = [inputs, _MASK] if inputs == "input_ids" and _MASK in names else [inputs]
    try:
        x, *mask = (np.asarray(list(given[name])) for name in columns)
    except ValueError as error:
        remedy = "pad texts to one length: tokenizer(…, padding='max_length', truncation=True)"
        raise Refused(f"rows of {inputs} have different lengths", remedy) from error
    return np.stack([x, *mask], 1) if mask else x, np.asarray(list(given[label]))


def _items(given: torch_data.Dataset[Any]) -> tuple[Any, Any]:
    """Read a map-style data set whole."""
    if isinstance(given, torch_data.IterableDataset) or not hasattr(given, "__len__") or not len(given):
        remedy = "give a map-style Dataset (__getitem__ and __len__) with at least one sample"
        raise Refused(f"data is a {type(given).__name__} that has no items by number", remedy)
    try:
        x, y = torch_data.default_collate([given[i] for i in range(len(given))])
    except (RuntimeError, KeyError, TypeError, ValueError) as error:
        remedy = (
            "let each item be a pair (input, target) of tensors, all of one shape; of images: transforms.ToTensor()"
        )
        raise Refused(f"items of the data set are not pairs (input, target): {error}", remedy) from error
    if isinstance(x, Mapping | list | tuple):
        raise _several("an item of the data set")
    return x, y


def _several(what: str) -> Refused:
    remedy = "give one array: x = numpy.stack([ids, mask], 1), and in forward x[:, 0] and x[:, 1]"
    return Refused(f"{what} has several inputs", remedy)
