"""The content of an image, for hosts that have no container engine."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryFile
from typing import Final

from docker.errors import ImageNotFound

from runner.adapters.docker.connection import EngineConnection, engine_errors
from runner.adapters.docker.hardening import IMAGE_FORBIDDEN, OUT_OF_PLACE, set_aside
from runner.base.errors import Unavailable
from runner.core.ports.executor import ImageGone

ENGINE_S: Final = 600
"""Longest wait for the engine while it sends an image."""

CHUNK: Final = 2**20

NO_DEVICE: Final = ": Cannot mknod: Operation not permitted"
SUMMARY: Final = "tar: Exiting with failure status due to previous errors"


def export_image(url: str | None, image: str, directory: Path) -> tuple[str, ...]:
    """Unpack an image into an empty directory, and return the variables that it sets.

    Those that hooks would read are under the names of ``set_aside``.

    Raises:
        ImageGone: the engine does not have it.
        Unavailable: the engine does not answer, or the directory cannot be filled.
    """
    with engine_errors(f"unpack image {image[:19]}"):
        client = EngineConnection(url, ENGINE_S).connect()
        try:
            created = client.create_container(image, command=["true"])["Id"]
            try:
                variables = client.inspect_container(created)["Config"].get("Env") or ()
                _extract(client.export(created, chunk_size=CHUNK), directory)
            finally:
                client.remove_container(created)
        except ImageNotFound as error:
            raise ImageGone(image) from error
        finally:
            client.close()
    left_out = re.compile(f"{IMAGE_FORBIDDEN.pattern}|{OUT_OF_PLACE.pattern}")
    harmless = (each for each in variables if not left_out.fullmatch(each.partition("=")[0]))
    return (*harmless, *(f"{name}={value}" for name, value in set_aside(variables).items()))


def _extract(archive: Iterator[bytes], directory: Path) -> None:
    """Unpack an archive as files of this process that nobody else may change.

    All users see the directory.  So no file keeps its owner, a set-user-ID bit, or the right of others to
    write.  Device nodes are left out: root gives up the right to make them, and tar says that of each.
    """
    plain = ("--no-same-owner", "--no-same-permissions", "--warning=none", "--anchored", "--exclude=dev/*")
    command = ["tar", "--extract", *plain, "--directory", str(directory)]
    if os.geteuid() == 0:
        command = ["setpriv", "--inh-caps=-mknod", "--bounding-set=-mknod", "--", *command]
    with TemporaryFile() as errors:  # a pipe could fill
        english = {**os.environ, "LC_ALL": "C"}
        with subprocess.Popen(command, stdin=PIPE, stderr=errors, umask=0o022, env=english) as tar:
            if tar.stdin is not None:
                try:
                    for chunk in archive:
                        tar.stdin.write(chunk)
                except BrokenPipeError:
                    pass  # its own words follow
            tar.communicate()
        errors.seek(0)
        said = errors.read().decode(errors="replace").splitlines()
    is_whole = said[-1:] == [SUMMARY] and all(each.endswith(NO_DEVICE) for each in said[:-1])
    if tar.returncode and not is_whole:
        words = " ".join(" ".join(said).split())[-300:]
        raise Unavailable(f"{directory}: the image cannot be unpacked: {words}")
