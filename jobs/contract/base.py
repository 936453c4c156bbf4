"""What every model of the contract is made of: two bases, one version, one limit."""

from typing import Final

from pydantic import BaseModel, ConfigDict

CONTRACT_VERSION: Final = 1
"""Raised when a file below ``/job`` changes its meaning; both sides refuse a newer one."""

BILLION: Final = 10**9
"""Most steps, sequences or batches that anybody means; a checkpoint name holds twelve digits."""


class Spec(BaseModel):
    """Base of everything the runner writes: frozen, and closed against unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Report(BaseModel):
    """Base of everything the program writes: frozen, and deaf to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore")
