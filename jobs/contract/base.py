"""The base classes of the contract's models, the contract version and a common limit."""

from math import isfinite
from typing import Final

from pydantic import BaseModel, ConfigDict, model_validator

CONTRACT_VERSION: Final = 1
"""Incremented when a file below ``/job`` changes its meaning; both sides reject a newer version."""

BILLION: Final = 10**9
"""Upper limit of the number of steps, sequences or batches; a checkpoint name holds twelve digits."""

LARGEST_INTEGER: Final = 2**63 - 1
"""The store, and most that reads JSON, holds no larger one."""


class Spec(BaseModel):
    """Base of the models that the runner writes: frozen, with unknown keys forbidden."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Report(BaseModel):
    """Base of the models that the program writes: frozen, with unknown keys ignored.

    A number that is not finite is treated as missing, because JSON cannot represent it, and so is an integer
    of more than 64 bits, which no one who reads it can store or divide.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _finite(cls, given: object) -> object:
        return _without_unusable(given)


def _without_unusable(given: object) -> object:
    if not isinstance(given, dict):
        return given
    return {key: _without_unusable(value) for key, value in given.items() if not _is_unusable(value)}


def _is_unusable(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) > LARGEST_INTEGER
    return isinstance(value, float) and not isfinite(value)
