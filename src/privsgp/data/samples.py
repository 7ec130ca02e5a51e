"""Data from Python as arrays: tensors, lists, torch's map-style data sets, several inputs per sample.

A data set is read once, from its first item to its last; what random transforms make of an item is then fixed. Nothing
of a loader is used but its data set: batches are drawn here, by secret coins.

The engine knows one array of inputs. Several inputs, a tuple or a mapping of arrays, are laid side by side in float32,
which holds tokens below 2²⁴ exactly, and the model's own call takes them apart again (`fields.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import data as torch_data

from privsgp.data.dataset import array, tokens
from privsgp.data.files import NPZ
from privsgp.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privsgp.data.fields import Fields


def is_dataset(given: object) -> bool:
    """Tell whether this is torch's: a data set, or a loader that has one."""
    return isinstance(given, torch_data.Dataset | torch_data.DataLoader)


def are_sites(given: object) -> bool:
    """Tell whether this is a list of what each node brings: data sets, pairs (x, y), or files."""
    kinds = (torch_data.Dataset, torch_data.DataLoader, tuple, str, Path)
    return isinstance(given, list) and bool(given) and all(isinstance(one, kinds) for one in given)


def pair(given: Any) -> tuple[Any, ...]:  # noqa: ANN401 - whatever was brought
    """Return (x, y), or (x, y, x_test, y_test), of what one node or all of them together bring."""
    if isinstance(given, torch_data.DataLoader):
        given = given.dataset
    if isinstance(given, torch_data.Dataset):
        return tuple(plain(part, key) for part, key in zip(_items(given), NPZ, strict=False))
    if not isinstance(given, Sequence) or len(given) not in (2, 4):
        many = f" of {len(given)}" if isinstance(given, Sequence) else ""
        remedy = "give (x, y) or (x, y, x_test, y_test), a torch Dataset, a list of these or a mapping {node: …}"
        raise Refused(f"data is a {type(given).__name__}{many}", remedy)
    return tuple(plain(part, key) for part, key in zip(given, NPZ, strict=False))


def plain(part: Any, key: str) -> Any:  # noqa: ANN401 - whatever was brought
    """Return arrays in the place of tensors; several inputs stay several."""
    if isinstance(part, Mapping):
        return {str(name): plain(value, f"{key}[{name!r}]") for name, value in part.items()}
    if isinstance(part, tuple) and all(hasattr(value, "shape") for value in part):
        return tuple(plain(value, key) for value in part)
    if isinstance(part, torch.Tensor):
        return part.detach().cpu().numpy()
    return array(part, key)


def _items(given: torch_data.Dataset[Any]) -> tuple[Any, Any]:
    """Read a map-style data set whole."""
    if isinstance(given, torch_data.IterableDataset) or not hasattr(given, "__len__") or not len(given):
        remedy = "give a map-style Dataset (__getitem__ and __len__) with at least one sample"
        raise Refused(f"data is a {type(given).__name__} that has no items by number", remedy)
    try:
        x, y = torch_data.default_collate([_sample(given[i]) for i in range(len(given))])
    except Refused:
        raise
    except (RuntimeError, KeyError) as error:
        raise Refused(f"items of the data set differ: {error}", "pad or cut them to one shape") from error
    return (tuple(x) if isinstance(x, list) else x), y


def _sample(item: object) -> tuple[Any, Any]:
    """Return input and target of an item."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise Refused(f"an item of the data set is a {type(item).__name__}", "let it give pairs: (input, target)")
    return _tensors(item[0]), _tensors(item[1])


def _tensors(x: Any) -> Any:  # noqa: ANN401 - whatever was brought
    if isinstance(x, Mapping):
        return {str(key): _tensors(value) for key, value in x.items()}
    if isinstance(x, tuple | list) and x and not isinstance(x[0], int | float):
        return tuple(_tensors(value) for value in x)
    found = x.detach().cpu() if isinstance(x, torch.Tensor) else torch.from_numpy(np.array(x))
    return found.permute(2, 0, 1) if hasattr(x, "getbands") and found.ndim == 3 else found  # Pillow's, as torch's


def are_fields(x: object) -> bool:
    """Tell whether inputs are several: a mapping, or a tuple of arrays."""
    if isinstance(x, Mapping):
        return True
    return isinstance(x, tuple) and len(x) > 1 and all(hasattr(part, "shape") and len(part.shape) > 0 for part in x)


def field_arrays(x: Mapping[str, Any] | tuple[Any, ...]) -> list[NDArray[Any]]:
    """Return the fields as arrays, each [N, …]; a field of one number a sample is [N, 1]."""
    parts = [np.asarray(part) for part in (x.values() if isinstance(x, Mapping) else x)]
    return [part[:, None] if part.ndim == 1 else part for part in parts]


def packed(fields: Fields, parts: Sequence[NDArray[Any]], key: str) -> NDArray[np.float32]:
    """Lay the fields of N samples side by side, [N, width]; they are checked by `from_arrays` later."""
    rows = []
    for number, (part, most) in enumerate(zip(parts, fields.vocabulary, strict=True)):
        name = f"{key}[{number if fields.names is None else repr(fields.names[number])}]"
        if part.shape[1:] != fields.shapes[number]:
            what = f"{name} has samples of shape {part.shape[1:]}, others have {fields.shapes[number]}"
            raise Refused(what, "give the samples of all sites, and of the test data, the same shape")
        flat = part.reshape(len(part), -1)
        if most:
            tokens(flat, name, most)
        scale = np.float32(255 if part.dtype == np.uint8 and not most else 1)
        rows.append(flat.astype(np.float32) / scale)
    if len({len(row) for row in rows}) > 1:
        raise Refused(f"{key} has fields of {[len(row) for row in rows]} rows", "give one row of each to a sample")
    return np.concatenate(rows, 1)
