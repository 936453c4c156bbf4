"""Answers of the helper: a value, or an error that the daemon raises again."""

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from runner.adapters.host.paths import PathRefusedError
from runner.base.errors import Refused, Unavailable, UsageError
from runner.core.ports.executor import ImageGone, LaunchRefused
from runner.core.ports.images import BuildFailed
from runner.core.ports.packages import Unresolvable

ERRORS: Final[Mapping[str, type[Exception]]] = {
    kind.__name__: kind
    for kind in (Refused, Unavailable, UsageError, ImageGone, LaunchRefused, BuildFailed, PathRefusedError)
}


def pack(value: object) -> bytes:
    """Return an answer with a value of JSON."""
    return json.dumps({"value": value}).encode()


def pack_error(error: BaseException) -> bytes:
    """Return an answer with an error of one of the kinds that callers expect."""
    if isinstance(error, OSError):
        told: dict[str, object] = {
            "error": "OSError",
            "number": error.errno or 0,
            "text": error.strerror or str(error),
        }
        return json.dumps(told).encode()
    if isinstance(error, Unresolvable):
        told = {
            "error": "Unresolvable",
            "text": str(error),
            "details": error.details,
            "more": error.reasons[1:],
        }
        return json.dumps(told).encode()
    kind = next((name for name, each in ERRORS.items() if type(error) is each), "Unavailable")
    answer: dict[str, object] = {"error": kind, "text": str(error)}
    if isinstance(error.__cause__, OSError) and error.__cause__.errno:
        answer["cause"] = error.__cause__.errno
    return json.dumps(answer).encode()


def unpack(content: bytes) -> Any:  # noqa: ANN401  (JSON)
    """Return the value of an answer, or raise its error.

    Raises:
        Exception: the error in the answer: an OSError, or one of ``ERRORS``.
    """
    answer: dict[str, Any] = json.loads(content)
    if "error" not in answer:
        return answer["value"]
    if answer["error"] == "OSError":
        raise OSError(answer["number"], answer["text"])
    if answer["error"] == "Unresolvable":
        raise Unresolvable(answer["text"], answer["details"], tuple(answer["more"]))
    problem = ERRORS[answer["error"]](answer["text"])
    if "cause" in answer:
        raise problem from OSError(answer["cause"], os.strerror(answer["cause"]))
    raise problem
