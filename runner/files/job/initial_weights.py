"""The field ``workload.init_from``: the checkpoint of an earlier job, or a directory with weights."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from jobs.contract import Plan, Program
from runner.base.textfile import quoted

_REFERENCE: Final = re.compile(r"job/([A-Za-z0-9][A-Za-z0-9._-]{0,62})/(best|final)")
_PREFIX: Final = "job/"


@dataclass(frozen=True, slots=True)
class JobWeights:
    """Weights that another job publishes."""

    job: str
    """Its id, or its name: the newest of the submitter's with that name."""
    kind: Literal["best", "final"]


def parse_init_from(written: str) -> JobWeights | None:
    """Return the job whose weights are named, None if the text is the path of a directory.

    Raises:
        ValueError: it is neither.
    """
    found = _REFERENCE.fullmatch(written)
    if found is not None:
        return JobWeights(found[1], "best" if found[2] == "best" else "final")
    if written.startswith(_PREFIX):
        raise ValueError(
            f"must be job/NAME/best or job/NAME/final, not {quoted(written)};"
            f" for a directory write {quoted(f'./{written}')}"
        )
    return None


def init_from(plan: Plan) -> str | None:
    """Return the weights to begin with in a plan; a program has no such field."""
    return None if isinstance(plan, Program) else plan.init_from
