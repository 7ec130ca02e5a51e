"""From a name in a config to a checked data set.

Inputs are scaled by the fixed, published constants below, never by statistics of the nodes' data (privacy.md,
Artefacts). Files are looked for in the data folder: an argument, or the environment variable PRIVSGP_DATA.
"""

from __future__ import annotations

import filecmp
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from privsgp.data import tables
from privsgp.data.dataset import Dataset, Task, from_arrays, nobody, pool, with_classes, with_tests
from privsgp.data.files import Found, read_npz
from privsgp.data.hashes import hashes
from privsgp.data.images import ImageOptions, class_folders, persons_of_images, read_bare_images, read_images
from privsgp.data.persons import Named, PersonOptions, grouped, in_forms, named
from privsgp.data.published import PUBLISHED, data_folder
from privsgp.data.same_records import in_common
from privsgp.data.tables import is_table
from privsgp.data.text import ENDINGS as TEXTS
from privsgp.data.text import TextOptions, read_texts
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from privsgp.data.hashes import Hashes
    from privsgp.data.schema import Schema

    Say = Callable[[str], None]

_KINDS = ".npz, .csv or .parquet"
_HERE = Path()


@dataclass(frozen=True)
class Form:
    """How files of one's own are to be read: tokens of a vocabulary, texts, images, tables. All is public.

    `persons` says whose rows belong together; None: nobody asks.
    """

    vocabulary: int | None = None
    text: TextOptions | None = None
    images: ImageOptions | None = None
    schema: Schema | None = None
    persons: PersonOptions | None = None

    @property
    def tokens(self) -> int | None:
        """How many tokens there are; None where samples are numbers."""
        return self.vocabulary if self.text is None else self.text.size

    def fits(self, path: Path) -> bool:
        """Tell whether a path is a folder, or a file of texts."""
        return path.is_dir() or (self.text is not None and path.suffix in TEXTS)


PLAIN = Form()


def load(
    name: str, *, data_dir: Path | None = None, task: Task = "classification", classes: int | None = None,
    form: Form = PLAIN, own: bool = False,
) -> Dataset:  # fmt: skip
    """The data set `name`: digits, mnist, cifar10, a9a, or the path of a file: .npz, or what its `form` says.

    `classes` is for .npz files, where it stands above the file's own number `classes`. With `task="regression"` labels
    become real targets. `own` as for `read_file`.
    """
    if name not in PUBLISHED and (is_file(name) or form.fits(Path(name))):
        found = read_file(file_path(name, data_dir), task, form, own=own)
        dataset = replace(found.dataset, name=name)
        return dataset if task == "regression" else with_classes(dataset, classes or found.classes)
    if name not in PUBLISHED:
        raise Refused(f"data.name = {name!r} is unknown", f"use {', '.join(PUBLISHED)} or the path of a file: {_KINDS}")
    known = PUBLISHED[name]
    if classes not in (None, known.classes):
        raise Refused(f"data.classes = {classes}, and {name!r} has {known.classes} classes", "leave data.classes out")
    x, y, x_test, y_test = known.read(data_dir)
    inputs = (known.scaled(some) for some in (x, x_test))
    return from_arrays(next(inputs), y, next(inputs), y_test, name=name, task=task, classes=known.classes)


def is_file(name: str) -> bool:
    """Tell whether a name is that of a file with records."""
    return name.endswith(".npz") or is_table(name)


class LoadedData(NamedTuple):
    """The content of a file or frame, checked except for the range of its labels; otherwise as `Found`."""

    dataset: Dataset
    classes: int | None
    notes: Sequence[str]


def read_file(path: Path, task: Task, form: Form = PLAIN, *, own: bool = False) -> LoadedData:
    """Read an .npz file, a table by its schema, texts, or a folder of class folders with images.

    `own` says that it is a site's own file: privsgp refuses a table from which the schema was drafted.
    """
    return _checked(read_arrays(path, form, own=own), str(path), task, form)


def read_frame(frame: object, where: str, task: Task, form: Form, *, own: bool = False) -> LoadedData:
    """Take a data frame or an Arrow table by its schema; `own` as for `read_file`."""
    schema = _needed(form.schema, where)
    table = tables.of_frame(frame, schema, where, own=own, persons=form.persons)
    return _checked(table, where, task, form)


def _checked(found: Found, where: str, task: Task, form: Form) -> LoadedData:
    if found.task not in (None, task):
        remedy = "take model.loss = 'mse' for numbers, 'cross-entropy' or 'binary' for classes"
        raise Refused(f"{where}: the schema's target is for {found.task}, and the loss is for {task}", remedy)
    given: Any = found[:4]
    dataset = from_arrays(*given, name=where, task=task, vocabulary=form.tokens, classes_known=False)
    dataset, notes = replace(dataset, rows=found.rows), list(found.notes)
    if form.persons is not None:
        dataset, cut = by_person(dataset, found.named, form.persons)
        notes += cut
    count = None if found.classes is None else np.asarray(found.classes)
    if count is not None and (count.ndim or count.dtype.kind not in "iu" or count < 1):
        raise Refused(f"{where}: classes = {count} is no positive whole number", "store the number of classes")
    return LoadedData(dataset, None if count is None else int(count), notes)


def by_person(dataset: Dataset, found: Named | None, options: PersonOptions) -> tuple[Dataset, list[str]]:
    """Return the rows that are used, ordered by person, and what was cut, for the site's own eyes."""
    if found is None:
        remedy = "remove data.person, or use a file that names the person of each row"
        raise Refused(f"data.person is set, and {dataset.name} names no persons", remedy)
    most, (made, cut_of, in_several) = options.rows_per_person, grouped(dataset, found, options)
    cut = f"{dataset.name}: {cut_of:,} persons have more than {most} rows, and {most} of each are used"
    forms = f"{dataset.name}: {in_forms(in_several)}"
    return made, [line for line, count in ((cut, cut_of), (forms, in_several)) if count]


def read_arrays(path: Path, form: Form, *, labelled: bool = True, own: bool = False) -> Found:
    """Return what a file or folder holds. Without `labelled` targets need not be there."""
    if form.text is not None and path.suffix in TEXTS:
        return read_texts(path, form.text, labelled=labelled, persons=form.persons, own=own)
    if path.is_dir() or (form.images is not None and path.suffix != ".npz"):
        return _read_images(path, form, labelled=labelled)
    if is_table(path.name):
        schema = _needed(form.schema, str(path))
        persons = form.persons if labelled else None
        return tables.read(path, schema, labelled=labelled, own=own, persons=persons)
    if path.suffix in TEXTS:
        remedy = 'name it: [data.text] column = "text", from Python text={"column": "text"}'
        raise Refused(f"{path} has no column of texts", remedy)
    arrays: Any = read_npz(path, ("x", "y") if labelled else ("x",))
    if (persons := form.persons if labelled else None) is None:
        return Found(**arrays)
    return Found(**arrays, named=named(read_npz(path, persons.columns, persons.columns), persons, str(path)))


def _read_images(path: Path, form: Form, *, labelled: bool) -> Found:
    if (images := form.images) is None:
        there = ", ".join(f'"{name}"' for name in class_folders(path)[:8])
        remedy = f"for images say [data.images] labels = [{there}]; store arrays with numpy.savez(path, x=…, y=…)"
        raise Refused(f"data: {path} is a folder, and [data.images] is missing", remedy)
    if not labelled:
        return Found(read_bare_images(path, images))
    whose = None if form.persons is None else persons_of_images(path, images, form.persons)
    return Found(*read_images(path, images), classes=len(images.labels), named=whose)


def _needed(schema: Schema | None, where: str) -> Schema:
    """Refuse a table without a schema."""
    if schema is None:
        raise Refused(f"{where} has no schema", 'name the public schema of its columns: schema = "schema.toml"')
    return schema


def like(schema: Schema) -> Dataset:
    """Return a record of nobody, with the shape that a schema gives."""
    return nobody((schema.width,), () if schema.times is None else (len(schema.times),), schema.classes)


def with_test(dataset: Dataset, path: Path | None, form: Form) -> Dataset:
    """Put public test data in the place of the test set."""
    if path is None:
        return dataset
    task: Task = "regression" if dataset.classes is None else "classification"
    found = read_file(path, task, replace(form, persons=None)).dataset
    x, y = (found.x, found.y) if found.x_test is None or found.y_test is None else (found.x_test, found.y_test)
    tested = with_tests(dataset, x, y)
    own = "y" if dataset.counted == "y_test" else dataset.counted  # those labels were the site's own, and are gone
    return tested if dataset.classes is None else replace(with_classes(tested, dataset.classes), counted=own)


def load_sites(
    template: str, nodes: Sequence[int], *, task: Task = "classification", classes: int | None = None,
    form: Form = PLAIN, base: Path = _HERE, names: Sequence[str] | None = None, say: Say = lambda _line: None,
    look: Callable[[Dataset], None] = lambda _one: None,
) -> tuple[Dataset, list[NDArray[np.int64]]]:  # fmt: skip
    """Each node's own file (see `site_paths`), pooled, and which rows are whose.

    Test sets are pooled too; a site may have none. `say` reports what happened to single values, to their owner only.
    `look` may refuse what one file holds.
    """
    paths = site_paths(template, nodes, base, names)
    found = [read_file(path, task, form, own=True) for path in paths]
    for one in found:
        look(one.dataset)
    declared = {one.classes for one in found if one.classes is not None}
    if classes is None and len(declared) > 1:
        raise Refused(f"{template}: `classes` is {sorted(declared)} in different files", "store one number in all")
    for line in (line for one in found for line in one.notes):
        say(line)
    return pool([one.dataset for one in found], template, classes or next(iter(declared), None))


def site_paths(
    template: str, nodes: Sequence[int], base: Path = _HERE, names: Sequence[str] | None = None
) -> list[Path]:
    """Each node's file: `template` with {node} replaced by its number and {site} by its name, relative to `base`."""
    if "{node}" not in template and not (names and "{site}" in template):
        also = ' or "{site}.csv" with data.sites' if names else ""
        raise Refused(f"data.path = {template!r} has no {{node}}", 'write it like "site-{node}.csv"' + also)
    return [base / template.replace("{node}", str(i)).replace("{site}", names[i] if names else "{site}") for i in nodes]


def holds_records_of(path: Path, own: Sequence[Path], form: Form = PLAIN) -> bool:
    """Whether a path is one of these files, by whatever path, link or copy, or holds their records."""
    if any(same_file(path, file) for file in own):
        return True
    mine = hashes_in(path, form)  # saved anew, in another order, some left out
    return in_common(mine, [hashes_in(file, form) for file in own] if len(mine) else [])


def hashes_in(path: Path, form: Form) -> Hashes:
    """Return the hashes of a file's samples; none of a file that is not there, or cannot be read."""
    try:
        x = read_arrays(path, form, labelled=False).x
    except (OSError, Refused):
        x = np.empty((0, 0), np.float32)
    return hashes(x, tokens=form.tokens is not None) if x.ndim and x.dtype.kind in "biuf" else np.empty(0, np.uint64)


def same_file(one: Path, other: Path) -> bool:
    """Whether two names stand for one file, by whatever path, link or copy."""
    try:
        return one.samefile(other) or filecmp.cmp(one, other, shallow=False)
    except OSError:  # one of them is not there
        return False


def file_path(name: str, data_dir: Path | None, base: Path | None = None) -> Path:
    """The place of a file: relative to run.toml, as named, or in the data folder. A built-in name is no file."""
    if name in PUBLISHED:
        return Path(name)  # the data folder has a folder a9a of its own
    folders = [folder for folder in (base, Path(), data_folder(data_dir)) if folder is not None]
    return next((folder / name for folder in folders if (folder / name).exists()), Path(name))
