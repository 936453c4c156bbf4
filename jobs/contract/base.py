"""The base classes of the contract's models, the contract version and a common limit."""

from math import isfinite
from typing import Final

from pydantic import BaseModel, ConfigDict, model_validator

CONTRACT_VERSION: Final = 1
"""Incremented when a file below ``/job`` changes its meaning; both sides reject a newer version."""

BILLION: Final = 10**9
"""Upper limit of the number of steps, sequences or batches; a checkpoint name holds twelve digits."""


class Spec(BaseModel):
    """Base of the models that the runner writes: frozen, with unknown keys forbidden."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Report(BaseModel):
    """Base of the models that the program writes: frozen, with unknown keys ignored.

    A number that is not finite is treated as missing, because JSON cannot represent it.
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
