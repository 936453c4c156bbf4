"""An image whose ``python`` is the counting program."""

import io
import secrets
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import docker

COUNTER: Final = Path(__file__).with_name("counter.py")


@contextmanager
def docker_client(url: str) -> Iterator[docker.DockerClient]:
    with closing(docker.DockerClient(url, version="auto")) as client:
        yield client


@contextmanager
def counter_image(engine: str, base: str) -> Iterator[str]:
    """The id of an image whose ``python`` is the counting program."""
    program = b"#!/usr/bin/env python3\n" + COUNTER.read_bytes()
    path = "/opt/counter:/usr/local/bin:/usr/bin:/bin"
    dockerfile = f"FROM {base}\nENV PATH={path}\nCOPY python /opt/counter/python\n".encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content, mode in (("Dockerfile", dockerfile, 0o644), ("python", program, 0o755)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    archive.seek(0)
    with docker_client(engine) as client:
        name = f"runner-test:counter-{secrets.token_hex(4)}"
        image, _ = client.images.build(fileobj=archive, custom_context=True, tag=name, rm=True)
        try:
            yield str(image.id)
        finally:
            client.images.remove(name, force=True)
