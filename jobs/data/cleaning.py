"""Replaces numbers of the data that are none, as the job file says, and counts them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.contract.plans.base import Clean
from jobs.training.report import say


@dataclass(slots=True)
class Cleaner:
    """The rule of a job, and how many numbers it has met."""

    rule: Clean | None = None
    replaced: int = 0
    missing: int = 0

    def clean(self, values: NDArray[Any], *, numbers: bool = True) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return an array after the rule, and which of its numbers are missing; these are NaN.

        Without ``numbers``, nothing is replaced: what would be, is missing.
        """
        missing = np.zeros(values.shape, dtype=np.bool_)
        if self.rule is None:
            return values, missing
        cleaned = values
        for found, instead in ((np.isnan(values), self.rule.nan), (np.isinf(values), self.rule.inf)):
            if instead == "usual" or not found.any():
                continue
            number = instead if numbers else None
            cleaned = np.where(found, np.nan if number is None else number, cleaned).astype(values.dtype)
            if number is None:
                missing |= found
                self.missing += int(found.sum())
            else:
                self.replaced += int(found.sum())
        return cleaned, missing

    def tell(self) -> None:
        """Say what was cleaned, if a rule was given."""
        if self.rule is not None:
            parts = f"{self.replaced:,} numbers were replaced, and {self.missing:,} count as missing"
            say(f"clean: NaN: {self.rule.nan}, infinite: {self.rule.inf}: {parts}")


def held(values: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[Any]:
    """Return values in which a missing one is that of the row before it, at the beginning the next one's."""
    rows = np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1))
    last = np.maximum.accumulate(np.where(missing, -1, rows), axis=0)
    first = (~missing).argmax(axis=0)
    held_values: NDArray[Any] = np.take_along_axis(values, np.where(last < 0, first, last), axis=0)
    return held_values
