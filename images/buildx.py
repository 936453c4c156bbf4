"""Builds with the ``docker buildx`` plugin, the only builder that Docker still develops.

The plugin is called without a shell.  Its environment has only the variables that it needs to find the
engine, so no other variable of the daemon reaches a build.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Final

from images.cancellation import CancellationToken
from images.errors import failure
from images.ports import BuildRequest

_PASSED_VARIABLES: Final = (
    "PATH",
    "HOME",
    "DOCKER_CONFIG",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
    "XDG_RUNTIME_DIR",
)


def is_available() -> bool:
    """Return True if the command and its plugin are installed and can be started."""
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
    request: BuildRequest, context: IO[bytes], url: str | None, token: CancellationToken
) -> Iterator[str]:
    """Yield the build's log lines.

    Raises:
        BuildFailed: a step failed, or the program was killed; the message is the last line of its output.
    """
    last = ""
    process = subprocess.Popen(
        arguments(request),
        env=_environment(url),
        stdin=context,  # an open file, so writing it cannot block while the log is read
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,  # the command and its plugin are two processes
    )
    with process, _killed_on_exit(process, token):
        for line in process.stdout or ():
            last = line.rstrip() or last
            yield line.rstrip("\n")
    if process.returncode != 0:
        raise failure(last)


@contextmanager
def _killed_on_exit(process: subprocess.Popen[str], token: CancellationToken) -> Iterator[None]:
    """Kill the program when the build is cancelled or its output is not read to the end.

    The engine ends a build whose client disconnects.
    """

    def kill() -> None:
        os.killpg(process.pid, signal.SIGKILL)  # not reaped before the block ends, so the pid is still valid

    with token.on_cancel(kill), ExitStack() as on_error:
        on_error.callback(kill)
        yield
        on_error.pop_all()


def arguments(request: BuildRequest) -> list[str]:
    """Return the argv of a build whose context is standard input."""
    given = [f"--build-arg={name}={value}" for name, value in sorted(request.arguments.items())]
    labels = [f"--label={name}={value}" for name, value in sorted(request.labels.items())]
    # The default builder is that of the engine; others do not see local base images.
    network = f"--network={'default' if request.network else 'none'}"
    fixed = ["--builder=default", "--progress=plain", "--load", network, f"--tag={request.tag}"]
    fixed += [f"--file={request.dockerfile}"] + ([] if request.cache else ["--no-cache"])
    return ["docker", "buildx", "build", *fixed, *given, *labels, "-"]


def _environment(url: str | None) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    host = url or os.environ.get("DOCKER_HOST")
    engine = {"DOCKER_HOST": host} if host else {}
    # With attestations the result is an index, and its id is not that of the image.
    return kept | engine | {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
