"""The finished model in the layout of another code base, beside ``final`` in the lineage.

A model of Hugging Face is written by its own ``save_pretrained``; a file of ``torch.save`` has the names that
the job file gives.  The directory is replaced as a whole, so a kill leaves the old one or the new one.
"""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import torch
from torch import Tensor

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
            named = foreign_names(weights, wanted)
            torch.save({wanted.entry: named} if wanted.entry else named, tmp / wanted.file)
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


def foreign_names(weights: Mapping[str, Tensor], wanted: Export) -> dict[str, Tensor]:
    """Return the weights by the names of the other code base."""
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        there = next(
            (one + name.removeprefix(here) for one, here in wanted.rename.items() if name.startswith(here)),
            name,
        )
        if wanted.prefix + there in found:
            raise InvalidSpec(f"workload.export.rename: two tensors would be {wanted.prefix}{there}")
        found[wanted.prefix + there] = tensor.detach().cpu().contiguous()
    return found
