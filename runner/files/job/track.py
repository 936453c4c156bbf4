"""``track``: the experiment trackers that get what a job reports."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from jobs import contract
from runner.base.textfile import quoted, shown
from runner.files.field_checks import check_text
from runner.files.job.program_files import HOME
from runner.files.job.queue import FieldProblem
from runner.files.validation import error_below, suggest_choice

HELP: Final = "write [tensorboard], or [{mlflow: http://HOST:PORT}]"


def check_trackers(value: object) -> contract.Tracking:
    """Return the trackers of a list such as ``[tensorboard, {mlflow: URI}]``."""
    if isinstance(value, contract.Tracking):
        return value
    if isinstance(value, str | dict) or not isinstance(value, list | tuple):
        raise ValueError(f"must be a list, not {shown(value)}; {HELP}")
    tensorboard, mlflow = False, None
    for number, each in enumerate(value):
        name, uri = _named(each, number)
        if (name == "tensorboard" and tensorboard) or (name == "mlflow" and mlflow is not None):
            raise error_below((number,), f"{name} is there already; name it once")
        tensorboard, mlflow = tensorboard or name == "tensorboard", uri or mlflow
    return contract.Tracking(tensorboard=tensorboard, mlflow=mlflow)


def _named(value: object, number: int) -> tuple[str, str | None]:
    """Return the name of a tracker and its address."""
    if value == "mlflow":
        raise error_below((number,), "mlflow needs an address: {mlflow: http://HOST:PORT}")
    if isinstance(value, str):
        if value not in contract.TRACKERS:
            raise error_below((number,), f"there is no tracker {quoted(value)}{_meant(value)}")
        return value, None
    if isinstance(value, dict) and len(value) == 1:
        [(name, uri)] = value.items()
        if name == "mlflow":
            return name, _address(uri, number)
        if name in contract.TRACKERS:
            raise error_below((number, name), "has no settings; write it without a colon")
        raise error_below((number, name), f"there is no tracker {quoted(str(name))}{_meant(str(name))}")
    raise error_below((number,), f"must be a tracker, not {shown(value)}; {HELP}")


def _meant(name: str) -> str:
    if name in {"wandb", "weights_and_biases", "comet", "neptune", "clearml"}:
        return "; the program logs to it itself: docs/howto/track-experiments.md says how"
    return suggest_choice(name, contract.TRACKERS)


def _address(uri: object, number: int) -> str:
    if not isinstance(uri, str) or not uri.strip():
        raise error_below(
            (number, "mlflow"), f"must be an address such as http://HOST:PORT, not {shown(uri)}"
        )
    try:
        check_text(uri)
        parts = urlsplit(uri)
        has_password = parts.password is not None
    except ValueError as error:
        raise error_below((number, "mlflow"), str(error)) from error
    if has_password:
        fact = "has a password, and a job file is not secret; name a file: secrets.mlflow_token"
        raise error_below((number, "mlflow"), fact)
    is_file = parts.scheme == "file" and not parts.netloc and parts.path.startswith("/")
    if not is_file and not (parts.scheme in {"http", "https"} and parts.netloc):
        fact = f"must be http://HOST:PORT, https://HOST or file:///DIRECTORY, not {shown(uri)}"
        raise error_below((number, "mlflow"), fact)
    return uri


def _as_written(value: contract.Tracking) -> list[object]:
    board: list[object] = ["tensorboard"] if value.tensorboard else []
    return [*board, *([] if value.mlflow is None else [{"mlflow": value.mlflow}])]


Trackers = Annotated[
    contract.Tracking,
    PlainValidator(check_trackers),
    PlainSerializer(_as_written, return_type=list[object], when_used="always"),
    WithJsonSchema(
        {
            "type": "array",
            "maxItems": len(contract.TRACKERS),
            "items": {
                "anyOf": [
                    {"const": "tensorboard"},
                    {
                        "type": "object",
                        "properties": {"mlflow": {"type": "string"}},
                        "required": ["mlflow"],
                        "additionalProperties": False,
                    },
                ]
            },
        }
    ),
]


def find_tracking_problems(
    track: contract.Tracking, writable: tuple[str, ...], network: str, *, in_container: bool
) -> Iterator[FieldProblem]:
    """Yield the reasons why a job cannot reach what it is to be tracked by.

    ``writable`` are the directories of the job that its submitter has mounted to be written.
    """
    if track.mlflow is None or not in_container:
        return
    parts = urlsplit(track.mlflow)
    if parts.scheme == "file":
        place = PurePosixPath(unquote(parts.path))
        if not any(place.is_relative_to(each) for each in (HOME, *writable)):
            fact = f"{quoted(str(place))} is not a directory that the job can write"
            yield ("track",), f"{fact}; mount one (mounts, read_only: false), or take file://{HOME}mlruns"
    elif network == "none":
        yield ("track",), "mlflow is reached over the network, and the job has none; set network: outbound"
