"""The plan of ``program``: a user's own training program, in any language."""

from typing import Literal

from pydantic import Field, field_validator

from jobs.contract.base import BILLION, Spec


class Program(Spec):
    """A command of the user's own; ``docs/reference/contract.md`` describes its run directory."""

    kind: Literal["program"] = "program"
    command: tuple[str, ...] = Field(
        min_length=1,
        max_length=200,
        description="The program, found on PATH unless it has a slash, and its arguments.",
    )
    code: str | None = Field(
        None,
        description="Directory shown read-only as /code, where the command starts; null: the run directory.",
    )
    steps: int | None = Field(None, ge=1, le=BILLION, description="Steps of the whole job, if it knows them.")

    @field_validator("command")
    @classmethod
    def _names_a_program(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not command[0].strip():
            raise ValueError("the first word is the program; it must not be empty")
        return command
