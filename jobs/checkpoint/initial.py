"""The weights with which a training begins: those of an earlier job's checkpoint, or of any directory.

Names, shapes and types of the tensors are compared with those of the model before anything is loaded.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn

from jobs.checkpoint.directory import STATE, WEIGHTS, load
from jobs.contract import MANIFEST, CheckpointInvalid, verify
from jobs.training.failures import InvalidSpec

_NAMED: Final = 3
"""The most differences that a message names."""


def load_initial_weights(
    directory: Path,
    written: str,
    model: nn.Module,
    cut: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = dict,
) -> str:
    """Load the weights in a directory into a model, and return where they are from, in words.

    ``written`` is what the job file says.  The directory is a checkpoint (``step-N``, ``best-N``, ``final``),
    whose files are compared with its manifest, or holds a ``weights.pt`` that ``torch.save`` wrote.  ``cut``
    leaves of the weights what this process holds, where the model is sharded.

    Raises:
        InvalidSpec: There are no such weights, or they do not fit the model.
    """
    try:
        step, weights = _read(directory)
    except CheckpointInvalid as error:
        raise InvalidSpec(f"workload.init_from: {written}: {error}") from error
    if problem := misfit(weights, model.state_dict()):
        fact = f"the weights do not fit this model: {problem}"
        raise InvalidSpec(
            f"workload.init_from: {written}: {fact}; the fields that shape the model must be those of the job"
            " that made them"
        )
    model.load_state_dict(cut(weights))
    return f"the weights of {written}" + ("" if step is None else f", step {step}")


def _read(directory: Path) -> tuple[int | None, Mapping[str, Tensor]]:
    """Return the step of the weights, if it is known, and the weights.

    Raises:
        CheckpointInvalid: There are none, or a file is not what its manifest says.
    """
    step = verify(directory).step if (directory / MANIFEST).exists() else None
    if (directory / WEIGHTS).exists():
        found: Any = load(directory, WEIGHTS)
    elif step is not None and (directory / STATE).exists():
        found = load(directory, STATE).get("model")
    else:
        raise CheckpointInvalid(f"no {WEIGHTS}, and no checkpoint of this runner, in {directory}")
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise CheckpointInvalid(f"{WEIGHTS} holds no mapping of names to tensors; save model.state_dict()")
    return step, found


def misfit(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """Return in which tensors weights differ from those of a model; empty if they fit."""
    differing = [
        f"{name} is {_form(found[name])} there and {_form(wanted[name])} here"
        for name in wanted
        if name in found and _form(found[name]) != _form(wanted[name])
    ]
    differing += [f"there is no {name}" for name in wanted if name not in found]
    differing += [f"{name} is not a part of it" for name in found if name not in wanted]
    more = len(differing) - _NAMED
    return ", ".join(differing[:_NAMED]) + (f", and {more} more" if more > 0 else "")


def _form(tensor: Tensor) -> str:
    """Return shape and type of a tensor: ``12 x 64 float32``."""
    shape = " x ".join(map(str, tensor.shape)) or "a single"
    return f"{shape} {str(tensor.dtype).removeprefix('torch.')}"
