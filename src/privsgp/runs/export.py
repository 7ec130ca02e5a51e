"""A model in the forms that other programs read; each is read back and compared before it is left behind."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file

from privsgp.errors import Refused
from privsgp.files import replace
from privsgp.runs import card as cards
from privsgp.runs.rows import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from privsgp.runs.result import Result

    Check = Callable[[Path, Tensor], Tensor]

ENDINGS = {"onnx": ".onnx", "torchscript": ".pt", "state-dict": ".safetensors"}
_CLOSE = 1e-4


def export(result: Result, form: str, path: Path) -> None:
    """Write the model to `path`: ONNX, TorchScript, or its whole state (frozen weights too) as safetensors.

    Guarantee: what was written gives the same outputs on made-up samples, in batches of several sizes, or is not left
    behind. It carries the card of the model's file: shapes, classes, privacy.
    """
    if form not in ENDINGS:
        raise Refused(f"--format {form}", f"take one of {', '.join(ENDINGS)}")
    if form == "onnx":
        _refuse_without("onnx", "onnxscript")
    write, outputs = {
        "onnx": (_onnx, _from_onnx),
        "torchscript": (_torchscript, _from_torchscript),
        "state-dict": (_state_dict, _from_state_dict(result)),
    }[form]
    result.model.eval()
    try:
        replace(path, lambda temporary: _checked(result, temporary, write, outputs))
    except FileNotFoundError as error:
        raise Refused(f"cannot write {path}: {error.strerror}", "name a file in a folder that exists") from error


def _checked(result: Result, path: Path, write: Callable[[Result, Path], None], outputs: Check) -> None:
    write(result, path)
    for count in (1, 5):
        x = made_up(result, count)
        with torch.no_grad():
            ours, theirs = result.model(x), outputs(path, x)
        if not torch.allclose(ours, theirs.to(ours), rtol=_CLOSE, atol=_CLOSE):
            off = float((ours - theirs).abs().max())
            raise Refused(f"the exported model differs by {off:.2g} on made-up samples", "take another --format")


def made_up(result: Result, count: int) -> Tensor:
    """Return samples of the right shape that are nobody's."""
    generator, shape = torch.Generator().manual_seed(count), (count, *result.card["input_shape"])
    if (most := result.card.get("vocabulary")) is not None:
        return torch.randint(most, shape, generator=generator)
    x = torch.randn(shape, generator=generator)
    if (fields := fields_of(result.card)) is not None:  # tokens among real numbers
        tokens = torch.tensor(fields.columns)
        x = torch.where(tokens > 0, torch.rand(shape, generator=generator).mul(tokens).floor(), x)
    return x.to(next(result.model.parameters()).dtype)


def _refuse_without(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise Refused(f"--format onnx needs {' and '.join(missing)}", "pip install 'privsgp[export]'")


def _onnx(result: Result, path: Path) -> None:
    import onnx

    any_count = {"x": {0: "N"}, "outputs": {0: "N"}}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter about its own parts
            torch.onnx.export(
                result.model, (made_up(result, 2),), path, dynamo=False, dynamic_axes=any_count, input_names=["x"],
                output_names=["outputs"],
            )  # fmt: skip
    except (RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
        raise Refused(
            f"this model cannot be written as ONNX: {str(error).splitlines()[0]}", "take --format torchscript"
        ) from error
    model = onnx.load(path)
    model.metadata_props.add(key="privsgp", value=cards.metadata(result.card)["privsgp"])
    onnx.save(model, path)


def _from_onnx(path: Path, x: Tensor) -> Tensor:
    import onnx
    from onnx.reference import ReferenceEvaluator

    (outputs,) = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x.numpy()})
    return torch.from_numpy(outputs)


def _torchscript(result: Result, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is old, and of shapes that a batch never changes
        traced = torch.jit.trace(result.model, made_up(result, 2))  # type: ignore[no-untyped-call]
        torch.jit.save(traced, path, _extra_files={"privsgp.json": cards.metadata(result.card)["privsgp"]})


def _from_torchscript(path: Path, x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        outputs: Tensor = torch.jit.load(path)(x)  # type: ignore[no-untyped-call]
    return outputs


def _state_dict(result: Result, path: Path) -> None:
    tensors = {name: value.contiguous().clone().cpu() for name, value in result.model.state_dict().items()}
    save_file(tensors, path, cards.metadata(result.card))


def _from_state_dict(result: Result) -> Check:
    def outputs(path: Path, x: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(result.model, load_file(path), (x,))
        return found

    return outputs
