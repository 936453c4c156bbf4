"""The finished model in the layout of another code base, beside ``final`` in the lineage.

A model of Hugging Face is written by its own ``save_pretrained``; a file of ``torch.save`` has the names that
the job file gives.  The directory is replaced as a whole, so a kill leaves the old one or the new one.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import torch
from torch import Tensor

from jobs.checkpoint import names as mapping
from jobs.checkpoint.durable import remove_tree, sync
from jobs.contract.plans.base import Export
from jobs.training.failures import InvalidSpec

EXPORT: Final = "export"
"""The name of the directory."""


@runtime_checkable
class SavesPretrained(Protocol):
    """A workload whose model has a layout of Hugging Face."""

    def save_pretrained(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the model with these weights into a directory."""


def export(wanted: Export, workload: object, weights: Mapping[str, Tensor], lineage: Path) -> str:
    """Write the model, and return what was written, in words.

    Raises:
        InvalidSpec: The names of two tensors would be the same, or the model has no such layout.
    """
    tmp, place = lineage / f".tmp-export-{secrets.token_hex(4)}", lineage / EXPORT
    tmp.mkdir()
    try:
        if wanted.format == "state_dict":
            named = {name: _whole(tensor) for name, tensor in foreign_names(weights, wanted).items()}
            with (tmp / wanted.file).open("wb") as file:  # given a path, torch does not tell a full disk
                torch.save({wanted.entry: named} if wanted.entry else named, file)
        elif isinstance(workload, SavesPretrained):
            workload.save_pretrained(tmp, weights)
        else:
            raise InvalidSpec(f"workload.export.format: this model has no layout of {wanted.format}")
        for path in tmp.iterdir():
            sync(path)
        if place.exists():
            remove_tree(place)
        tmp.rename(place)
        sync(lineage)
    finally:
        remove_tree(tmp)
    held = ", ".join(sorted(path.name for path in place.iterdir()))
    return f"exported as {wanted.format} to {place}: {held}"


def check_names(wanted: Export | None, weights: Mapping[str, Tensor]) -> None:
    """Raise before the first step the ``InvalidSpec`` that ``export`` would raise after the last one."""
    if wanted is not None and wanted.format == "state_dict":
        shapes = {name: torch.empty(tensor.shape, device="meta") for name, tensor in weights.items()}
        foreign_names(shapes, wanted)


def _whole(tensor: Tensor) -> Tensor:
    """Return a tensor in memory of its own: of a part, ``torch.save`` would write the whole storage."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def foreign_names(weights: Mapping[str, Tensor], wanted: Export) -> dict[str, Tensor]:
    """Return the weights by the names of the other code base."""
    known = mapping.rules(wanted.rename)
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        for there, chunk in _there(name, tensor, known, partial=wanted.partial):
            if wanted.prefix + there in found:
                raise InvalidSpec(f"workload.export.rename: two tensors would be {wanted.prefix}{there}")
            found[wanted.prefix + there] = chunk
    if not found:
        raise InvalidSpec("workload.export.rename: names no tensor of this model; correct it")
    return found


def _there(
    name: str, tensor: Tensor, known: Sequence[mapping.Rule], *, partial: bool
) -> Iterator[tuple[str, Tensor]]:
    """Yield the names there of a tensor, each with its part of it."""
    found = list(mapping.there(name, known))
    if not found:
        yield from () if partial else ((name, tensor),)
        return
    parts = found[0][1].parts
    if missing := sorted({*range(1, parts + 1)} - {rule.part for _, rule in found}):
        raise InvalidSpec(f"workload.export.rename: {name} lacks its part {missing[0]} of {parts}; add it")
    if len(tensor) % parts if tensor.dim() else parts > 1:
        raise InvalidSpec(f"workload.export.rename: {name} has no {parts} equal parts")
    chunks = tensor.chunk(parts) if parts > 1 else (tensor,)
    yield from ((there, chunks[rule.part - 1]) for there, rule in found)
