"""The section ``progress`` of the job file: how the log of a program tells its progress.

Patterns are matched by RE2, in a time that is linear in the text: they come from users, and Python's own
``re`` takes years for some of them.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, Field

from jobs import contract
from runner.base.textfile import one_line, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_PATTERN: Final = 500
"""Characters of a pattern."""

MAX_GROUPS: Final = 20
"""Named groups of a pattern: each is a number in every report."""

MAX_PROGRAM_BYTES: Final = 1024**2
"""Memory of a compiled pattern, in which RE2 also keeps what it has learned of the text."""

FIELDS: Final = ("step", "total", "epoch", "loss", "items_per_s")
"""The groups with a meaning; every other one is a metric of that name."""


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> Any:  # noqa: ANN401  no type stubs
    """Return the compiled pattern, which matches bytes.

    Raises:
        ValueError: it is not a regular expression that RE2 accepts; with the message for the user.
    """
    import re2  # noqa: PLC0415  only job files with a pattern, and the daemon, need it

    options = re2.Options()
    options.max_mem, options.log_errors = MAX_PROGRAM_BYTES, False
    try:
        return re2.compile(pattern.encode(), options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        hint = "; lookaround and backreferences do not exist here, because matching takes linear time"
        is_missing = "perl operator" in text or "escape sequence" in text
        raise ValueError(f"is not a valid pattern: {one_line(text)}{hint if is_missing else ''}") from error


@lru_cache(maxsize=512)
def group_names(pattern: str) -> tuple[str, ...]:
    """Return the names of the groups of a valid pattern."""
    index: Mapping[bytes, int] = compile_pattern(pattern).groupindex
    return tuple(sorted(name.decode() for name in index))


def _check(pattern: str) -> str:
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"has {len(pattern)} characters, and the limit is {MAX_PATTERN}")
    names = group_names(pattern)
    if not names:
        example = quoted(r"step (?P<step>\d+)")
        raise ValueError(f"has no named group, so it reports nothing; name a number: {example}")
    if len(names) > MAX_GROUPS:
        raise ValueError(f"has {len(names)} named groups, and the limit is {MAX_GROUPS}")
    return pattern


class LogProgress(contract.Spec):
    """Reading of the progress of a program from its log."""

    pattern: Annotated[str, AfterValidator(_check)] | None = Field(
        None,
        description="Regular expression (RE2) for a line of the log; its named groups step, total, epoch,"
        " loss and items_per_s are the progress, and others are metrics; null: the lines of tqdm,"
        " Keras, Hugging Face's Trainer and some others.",
    )
