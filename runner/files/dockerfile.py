"""The Dockerfile of a job, which is checked when the job is submitted, where its author's rights are."""

from collections.abc import Callable, Collection
from pathlib import Path

from images.dockerfile import MAX_BYTES, read_dockerfile
from runner.base.errors import UsageError
from runner.base.textfile import FileError, Position, Problem, one_line


def check_dockerfile(
    read: Callable[[Path], bytes], base: Path, path: str, offered: Collection[str] | None
) -> tuple[str, ...]:
    """Return the warnings about a Dockerfile, one line each.

    Args:
        read: Returns the content of a file, with the rights of the submitter.
        base: The directory of the job file.
        path: The Dockerfile, as the job file names it.
        offered: The images that it may begin with; None: any.

    Raises:
        FileError: at the lines that say what it may not.
    """
    shown = Path(path)
    try:
        body = read(base / path)
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(shown, [Problem(None, "", "is not UTF-8 text")]) from error
    except UsageError as error:
        fact = str(error).removeprefix(f"{one_line(str(base / path))}: ")
        raise FileError(shown, [Problem(None, "", fact)]) from error
    if len(body) > MAX_BYTES:
        raise FileError(shown, [Problem(None, "", f"is larger than {MAX_BYTES // 1024} KiB")])
    reading = read_dockerfile(text, offered)
    found = [
        Problem(Position(each.line, 1), one_line(each.text), one_line(each.fact))
        for each in (reading.mistakes or reading.warnings)
    ]
    if reading.mistakes:
        raise FileError(shown, found)
    return tuple(each.line(shown) for each in found)
