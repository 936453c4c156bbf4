"""Errors that an answer carries: raised again at the other end as what they were, if it knows them."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from runner.base.errors import Refused, Unavailable, UsageError

Arguments: TypeAlias = Callable[[Any], tuple[object, ...]]
"""Returns what an error is made of, as JSON values."""


def text_alone(error: BaseException) -> tuple[object, ...]:
    """Return the arguments of an error that is made of its text."""
    return (str(error),)


ALWAYS: Final[Mapping[type[Exception], Arguments]] = dict.fromkeys(
    (Refused, Unavailable, UsageError), text_alone
)
_MARK: Final = b'{"error"'


@dataclass(frozen=True, slots=True)
class ErrorKinds:
    """The kinds of errors that callers expect, besides ``OSError`` and those of ``ALWAYS``."""

    more: Mapping[type[Exception], Arguments] = field(default_factory=dict)

    def expects(self, error: BaseException) -> bool:
        """Return True if an error is an answer, and not a mistake in the work."""
        return isinstance(error, (OSError, *ALWAYS, *self.more))

    def pack(self, error: BaseException) -> bytes:
        """Return an error as an answer; one of no known kind becomes ``Unavailable``."""
        if isinstance(error, OSError):
            arguments: tuple[object, ...] = (error.errno or 0, error.strerror or str(error))
            return json.dumps({"error": "OSError", "arguments": arguments}).encode()
        kind = next((each for each in self._known if type(error) is each), Unavailable)
        answer: dict[str, object] = {"error": kind.__name__, "arguments": self._known[kind](error)}
        if isinstance(error.__cause__, OSError) and error.__cause__.errno:
            answer["cause"] = error.__cause__.errno
        return json.dumps(answer).encode()

    def raise_if_any(self, content: bytes) -> None:
        """Raise the error of an answer, if it is one."""
        if not content.startswith(_MARK):
            return
        answer = json.loads(content)
        kinds: dict[str, type[Exception]] = {kind.__name__: kind for kind in self._known}
        problem = (kinds | {"OSError": OSError})[answer["error"]](*answer["arguments"])
        cause = answer.get("cause")
        raise problem from None if cause is None else OSError(cause, os.strerror(cause))

    @property
    def _known(self) -> Mapping[type[Exception], Arguments]:
        return {**ALWAYS, **self.more}
