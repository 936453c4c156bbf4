"""Make the image that most tests train in, before they begin.

They come several at a time, each with daemons of its own: every one of those would make a base image, and
each base would want an environment of its own.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from images.errors import BuildFailed, EngineUnavailable
from images.store import ImageStore


def say(line: str) -> None:
    """Tell of a step that takes its time."""
    sys.stderr.write(f"image: {line}\n")


def main() -> None:
    """Make it in the engine that ``DOCKER_HOST`` names, if it names one and the image is not there."""
    if not os.environ.get("DOCKER_HOST"):
        return
    with TemporaryDirectory() as scratch:
        try:
            ImageStore(echo=say).ensure("cpu", Path(scratch) / "build.log")
        except (BuildFailed, EngineUnavailable) as error:
            raise SystemExit(f"image: {error}") from error


if __name__ == "__main__":
    main()
