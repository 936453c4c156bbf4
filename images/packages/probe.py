"""Asks an image for its Python and its packages, in a container without a network; kept by image id."""

import json
import os
from pathlib import Path
from typing import Any, Final

from images.errors import BuildFailed
from images.packages.values import PREFIX, Installed, PythonFacts
from images.ports import Engine, Step

SCRIPT: Final = """
import importlib.metadata, json, os, platform, re, site, sys
found = {}
for each in importlib.metadata.distributions():
    name = re.sub("[-_.]+", "-", each.metadata["Name"] or "").lower()
    if name and name not in found:
        found[name] = [each.version, list(each.requires or ())]
dirs = [path for path in site.getsitepackages() if os.path.isdir(path)]
free, number = PREFIX, 1
while os.path.exists(free):
    number += 1
    free = PREFIX + str(number)
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2],
    "machine": platform.machine(),
    "glibc": platform.libc_ver()[1],
    "executable": os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    "site_dirs": dirs,
    "installed": found,
    "prefix": free,
}))
""".replace("PREFIX", repr(PREFIX))


def probe_image(engine: Engine, image: str, cache_dir: Path) -> PythonFacts:
    """Return the Python and the packages of an image, which must be in the engine.

    Raises:
        BuildFailed: it has no Python.
    """
    cached = cache_dir / "packages" / "images" / f"{image.removeprefix('sha256:')}.json"
    if cached.is_file():
        return parse_facts(json.loads(cached.read_text()))
    end = engine.step(Step(image, ("python3", "-c", SCRIPT)))
    if end.exit_code != 0:
        raise BuildFailed(f"image {image[:19]}: python3 ends with {end.exit_code}: {end.output.strip()}")
    found = parse_facts(json.loads(end.output))
    cached.parent.mkdir(parents=True, exist_ok=True)
    partial = cached.with_suffix(f".{os.getpid()}")
    partial.write_text(end.output)
    partial.replace(cached)
    return found


def parse_facts(found: dict[str, Any]) -> PythonFacts:
    """Return the facts that the script printed."""
    major, minor = (int(part) for part in (found["glibc"] or "2.17").split(".")[:2])
    return PythonFacts(
        python=found["python"],
        machine=found["machine"],
        glibc=(major, minor),
        executable=found["executable"],
        site_dirs=tuple(found["site_dirs"]),
        installed=tuple(
            Installed(name, version, tuple(requires))
            for name, (version, requires) in sorted(found["installed"].items())
        ),
        prefix=found["prefix"],
    )
