"""The shared libraries of an image: which ones the dynamic linker does not find."""

from typing import Final

import docker

LOOK: Final = """
import os, pathlib, subprocess
os.chdir("/opt/venv")
files = [str(path) for path in pathlib.Path(".").rglob("*.so*") if path.is_file()]
for start in range(0, len(files), 200):
    said = subprocess.run(["ldd", *files[start:start + 200]], capture_output=True, text=True).stdout
    for line in said.splitlines():
        if not line.startswith("\t"):
            file = line.rstrip(":")
        elif "not found" in line:
            print(file, line.split()[0])
print(len(files), "libraries")
"""
"""A program for a container: a line with a file and a name for each library that is missing, then a count."""


def inside(client: docker.DockerClient, image: str, *argv: str, user: str | None = None) -> str:
    """Return the output of a command in a container without a network."""
    container = client.containers.create(image, list(argv), network_mode="none", user=user)
    try:
        container.start()
        code = container.wait()["StatusCode"]
        output: bytes = container.logs()  # once it has ended: who follows a short one may miss what it says
    finally:
        container.remove(force=True)
    assert code == 0, output
    return output.decode()


def find_missing(said: str) -> tuple[list[tuple[str, str]], int]:
    """Return the files of ``LOOK`` with the libraries that they miss, and how many files were looked at."""
    *missing, counted = said.splitlines()
    return sorted({(file, name) for file, name in map(str.split, missing)}), int(counted.split()[0])
