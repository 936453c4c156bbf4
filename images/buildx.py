"""The ``docker buildx`` plugin, as a program: the one builder that Docker still develops.

An argument list and never a shell; the environment is cut down to what the program needs
to find the engine, so that nothing of the daemon's own reaches a build.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

from images.cancellation import CancellationToken
from images.errors import BuildFailed
from images.ports import BuildRequest

_PASSED_ON: Final = (
    "PATH",
    "HOME",
    "DOCKER_CONFIG",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
    "XDG_RUNTIME_DIR",
)


def works() -> bool:
    """Return whether the command and its plugin are installed and start."""
    if shutil.which("docker") is None:
        return False
    try:
        done = subprocess.run(
            ["docker", "buildx", "version"],
            env=_environment(None),
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def build(
    request: BuildRequest, context: IO[bytes], url: str | None, interest: CancellationToken
) -> Iterator[str]:
    """Yield the build's log lines.

    Raises:
        BuildFailed: a step failed, or the program was killed; with its last line.
    """
    last = ""
    process = subprocess.Popen(
        arguments(request),
        env=_environment(url),
        stdin=context,  # an open file, so it cannot block while the log is read
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,  # the command and its plugin are two processes
    )
    with process, _killed_early(process, interest):
        for line in process.stdout or ():
            last = line.rstrip() or last
            yield line.rstrip("\n")
    if process.returncode != 0:
        raise BuildFailed(last)


@contextmanager
def _killed_early(process: subprocess.Popen[str], interest: CancellationToken) -> Iterator[None]:
    """Let nothing go on that nobody waits for or listens to; the engine ends a build with its client."""

    def kill() -> None:
        os.killpg(process.pid, signal.SIGKILL)  # not reaped before the block is left, so it is ours

    with interest.ending(kill):
        try:
            yield
        except BaseException:
            kill()
            raise


def arguments(request: BuildRequest) -> list[str]:
    """Return the argv of a build whose context comes on standard input."""
    given = [f"--build-arg={name}={value}" for name, value in sorted(request.arguments.items())]
    labels = [f"--label={name}={value}" for name, value in sorted(request.labels.items())]
    # The default builder is the engine's own; another one would not see local base images.
    fixed = ["--builder=default", "--progress=plain", "--load", "--network=none", f"--tag={request.tag}"]
    return ["docker", "buildx", "build", *fixed, *given, *labels, "-"]


def _environment(url: str | None) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    host = url or os.environ.get("DOCKER_HOST")
    engine = {"DOCKER_HOST": host} if host else {}
    # Attestations would make an index of the image, whose id is not the image's.
    return kept | engine | {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
