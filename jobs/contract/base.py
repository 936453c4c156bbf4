"""What every model of the contract is made of: two bases, one version, one limit."""

from math import isfinite
from typing import Final

from pydantic import BaseModel, ConfigDict, model_validator

CONTRACT_VERSION: Final = 1
"""Raised when a file below ``/job`` changes its meaning; both sides refuse a newer one."""

BILLION: Final = 10**9
"""Most steps, sequences or batches that anybody means; a checkpoint name holds twelve digits."""


class Spec(BaseModel):
    """Base of everything the runner writes: frozen, and closed against unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Report(BaseModel):
    """Base of everything the program writes: frozen, and deaf to keys it does not know.

    A figure that is not finite is as one that is not there: JSON has no word for it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _finite(cls, given: object) -> object:
        return _without_infinities(given)


def _without_infinities(given: object) -> object:
    if not isinstance(given, dict):
        return given
    figures = (each for each in given.items() if not isinstance(each[1], float) or isfinite(each[1]))
    return {key: _without_infinities(value) for key, value in figures}
