"""The weights with which a training begins: of an earlier job's checkpoint, a directory, or a file.

Names, shapes and types of the tensors are compared with those of the model before anything is loaded.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from jobs.checkpoint import names as mapping
from jobs.checkpoint.directory import STATE, WEIGHTS, load, load_foreign
from jobs.contract import MANIFEST, CheckpointInvalid, verify
from jobs.contract.plans.base import InitMap
from jobs.training.failures import InvalidSpec

ENTRIES: Final = ("state_dict", "model_state_dict", "model")
"""Entries that hold the weights in the checkpoints of Lightning and of scripts."""

ADAPTER: Final = "adapter_config.json"
"""The file by which an adapter of peft is known."""

_NAMED: Final = 3
"""The most differences that a message names."""


def load_initial_weights(
    place: Path,
    written: str,
    model: nn.Module,
    cut: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = dict,
    names: InitMap | None = None,
) -> str:
    """Load weights into a model, and return where they are from and what did not fit, in words.

    ``written`` is what the job file says.  The place is a checkpoint (``step-N``, ``best-N``, ``final``),
    whose files are compared with its manifest, a directory with a ``weights.pt``, or a file that
    ``torch.save`` wrote, of which no code is run.  ``cut`` leaves of the weights what this process holds,
    where the model is sharded.

    Raises:
        InvalidSpec: There are no such weights, or they do not fit the model.
    """
    try:
        step, weights = _read_file(place, names) if place.is_file() else _read(place, model)
        if names is not None:
            weights = rename_tensors(weights, names)
    except CheckpointInvalid as error:
        raise InvalidSpec(f"workload.init_from: {written}: {error}") from error
    wanted = model.state_dict()
    where = f"the weights of {written}" + ("" if step is None else f", step {step}")
    if place.is_file():
        weights = {name: _converted(each, wanted.get(name)) for name, each in weights.items()}
    problem = misfit(weights, wanted)
    if problem and (names is None or not names.partial):
        raise InvalidSpec(
            f"workload.init_from: {written}: the weights do not fit this model: {problem}; {_hint(place)}"
        )
    fitting = {name: each for name, each in weights.items() if name in wanted and _fits(each, wanted[name])}
    if not fitting:
        raise InvalidSpec(
            f"workload.init_from: {written}: no tensor fits this model: {problem}; {_hint(place)}"
        )
    model.load_state_dict(cut(fitting), strict=not problem)
    return where + (
        f": {len(fitting)} of {len(wanted)} tensors, the rest stays random: {problem}" if problem else ""
    )


def _hint(place: Path) -> str:
    if place.is_file():
        return "workload.init_map gives names (prefix, rename), and with partial: true what fits is loaded"
    return "the fields that shape the model must be those of the job that made them"


def _read_file(place: Path, names: InitMap | None) -> tuple[None, Mapping[str, Tensor]]:
    """Return the weights in a file, from the entry that has them.

    Raises:
        CheckpointInvalid: There are none.
    """
    found: Any = load_foreign(place)
    entry = names.entry if names is not None else None
    if entry is not None and (not isinstance(found, dict) or entry not in found):
        held = ", ".join(map(str, found)) if isinstance(found, dict) else type(found).__name__
        raise CheckpointInvalid(f"{place.name} has no entry {entry}; it holds {held[:200]}")
    if entry is None and isinstance(found, dict):
        entry = next((each for each in ENTRIES if isinstance(found.get(each), dict)), None)
    weights = found if entry is None else found[entry]
    return None, _tensors(place.name, weights)


def _tensors(name: str, found: object) -> Mapping[str, Tensor]:
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise CheckpointInvalid(f"{name} holds no mapping of names to tensors; save model.state_dict()")
    return found


def rename_tensors(weights: Mapping[str, Tensor], names: InitMap) -> Mapping[str, Tensor]:
    """Return weights by the names that they have here.

    Raises:
        CheckpointInvalid: Two of them would have the same name, or none begins with the prefix.
    """
    known = mapping.rules(names.rename)
    found: dict[str, dict[int, Tensor]] = {}
    wanted: dict[str, int] = {}
    for name, tensor in weights.items():
        here, rule = mapping.here(name.removeprefix(names.prefix), known)
        part = rule.part if rule else 1
        if part in found.setdefault(here, {}):
            raise CheckpointInvalid(f"two of its tensors would be {here}; change workload.init_map")
        found[here][part], wanted[here] = tensor, rule.parts if rule else 1
    if names.prefix and not any(name.startswith(names.prefix) for name in weights):
        first = ", ".join(list(weights)[:_NAMED])
        raise CheckpointInvalid(f"no name begins with {names.prefix}; the first are {first}")
    return {name: _joined(name, parts, wanted[name]) for name, parts in found.items()}


def _joined(name: str, parts: Mapping[int, Tensor], wanted: int) -> Tensor:
    """Return the tensor that several of another code base are together."""
    if wanted == 1 and len(parts) == 1:
        return next(iter(parts.values()))
    if missing := sorted({*range(1, wanted + 1)} - parts.keys()):
        raise CheckpointInvalid(f"{name} lacks its part {missing[0]} of {wanted}; change workload.init_map")
    return torch.cat([parts[number] for number in sorted(parts)])


def _converted(found: Tensor, wanted: Tensor | None) -> Tensor:
    """Return a tensor in the precision of the model."""
    if wanted is None or not (found.is_floating_point() and wanted.is_floating_point()):
        return found
    return found.to(wanted.dtype)


def _fits(found: Tensor, wanted: Tensor) -> bool:
    return _form(found) == _form(wanted)


@runtime_checkable
class TakesAdapters(Protocol):
    """A model that has a place for an adapter of peft."""

    def adapter_weights(self, directory: Path) -> Mapping[str, Tensor]:
        """Return the weights of an adapter by the names of this model."""


def _read(directory: Path, model: nn.Module) -> tuple[int | None, Mapping[str, Tensor]]:
    """Return the step of the weights, if it is known, and the weights.

    Raises:
        CheckpointInvalid: There are none, or a file is not what its manifest says.
    """
    if (directory / ADAPTER).exists():
        if not isinstance(model, TakesAdapters):
            raise CheckpointInvalid("is an adapter of peft, and this model has no place for one; set lora")
        return None, model.adapter_weights(directory)
    step = verify(directory).step if (directory / MANIFEST).exists() else None
    if (directory / WEIGHTS).exists():
        found: Any = load(directory, WEIGHTS)
    elif step is not None and (directory / STATE).exists():
        found = load(directory, STATE).get("model")
    else:
        raise CheckpointInvalid(f"no {WEIGHTS}, and no checkpoint of this runner, in {directory}")
    return step, _tensors(WEIGHTS, found)


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
