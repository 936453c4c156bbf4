"""Make the image that most tests train in, before they begin.

Several tests run at the same time, each with its own daemons.  Without this step, each daemon would build
a base image, and each base image would need its own environment.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from images.digest import tag
from images.errors import BuildFailed, EngineUnavailable
from images.store import ImageStore


def say(line: str) -> None:
    """Print a message about a long step."""
    sys.stderr.write(f"image: {line}\n")


def main() -> None:
    """Print the tag of the image, if ``DOCKER_HOST`` is set, and build what its engine is missing."""
    if not os.environ.get("DOCKER_HOST"):
        return
    with TemporaryDirectory() as scratch:
        try:
            store = ImageStore(echo=say)
            store.ensure("cpu", Path(scratch) / "build.log")
            sys.stdout.write(f"{tag('job', 'cpu', store.digest('cpu'))}\n")
        except (BuildFailed, EngineUnavailable) as error:
            raise SystemExit(f"image: {error}") from error


if __name__ == "__main__":
    main()
