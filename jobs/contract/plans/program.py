"""The plan of ``program``: a user's own training program, in any language."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from jobs.contract.base import BILLION, Spec
from jobs.contract.parallel import MAX_PROCESSES


class ProgramCode(Spec):
    """The directory of a program's code, and how an attempt gets it."""

    path: str = Field(".", description="Directory of the code; relative to the job file.")
    live: bool = Field(
        default=False,
        description="true: every attempt runs the directory as it is then, read-only in a container;"
        " false: every attempt runs what was submitted.",
    )
    mode: Literal["writable", "read_only"] = Field(
        "writable", description="Whether the program may write to its working directory."
    )

    @model_serializer(mode="wrap")
    def _as_short_as_written(self, dump: SerializerFunctionWrapHandler) -> str | dict[str, Any]:
        """Return the path alone where nothing else is said, as in every version of the contract."""
        known = dump(self)
        more = {name: known[name] for name in ("live", "mode") if known[name] != _default(name)}
        return {"path": self.path, **more} if more else self.path


def _default(name: str) -> object:
    return ProgramCode.model_fields[name].default


def _expand_code(value: object) -> object:
    """Return a mapping; a text is its ``path``."""
    if isinstance(value, str):
        return {"path": value}
    if value is None or isinstance(value, dict | ProgramCode):
        return value
    raise ValueError("must be a directory or a mapping with path, live and mode")


class Program(Spec):
    """A command of the user's own; ``docs/reference/contract.md`` describes its run directory."""

    kind: Literal["program"] = "program"
    command: tuple[str, ...] = Field(
        min_length=1,
        max_length=200,
        description="The program, found on PATH unless it has a slash, and its arguments.",
    )
    code: Annotated[ProgramCode | None, BeforeValidator(_expand_code)] = Field(
        None,
        description="Directory that is kept at submission; every attempt starts in a copy of it, which a"
        " container has as /code; null: it starts in the run directory.",
    )
    terminal: bool = Field(
        default=False,
        description="Give the command a terminal, for runner attach; the image needs a Python.",
    )
    launcher: Literal["gang"] | None = Field(
        None,
        description="gang: start the command processes times, each with RANK, WORLD_SIZE, LOCAL_RANK and"
        " MASTER_ADDR; null: once.",
    )
    processes: int = Field(
        1, ge=1, le=MAX_PROCESSES, description="Processes that the launcher starts, usually one per GPU."
    )
    steps: int | None = Field(None, ge=1, le=BILLION, description="Steps of the whole job, if it knows them.")

    @property
    def known_steps(self) -> int | None:
        """The steps of the whole job, None if only the program knows them."""
        return self.steps

    @field_validator("command")
    @classmethod
    def _names_a_program(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not command[0].strip():
            raise ValueError("the first word is the program; it must not be empty")
        return command
