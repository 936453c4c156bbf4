"""Asks an image for its Python and its packages."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from images.bases import ask_python
from images.packages.values import PREFIX, Installed, PythonFacts
from images.ports import Engine

SCRIPT: Final = r"""
import importlib.metadata, json, os, platform, re, site, sys, sysconfig
found = {}
for each in importlib.metadata.distributions():
    name = re.sub("[-_.]+", "-", each.metadata["Name"] or "").lower()
    if name and name not in found:
        found[name] = [each.version, list(each.requires or ())]
dirs = [path for path in site.getsitepackages() if os.path.isdir(path)]
here, scripts = os.path.dirname(sys.executable), {}
homes = {os.path.realpath(each) for each in (here, os.path.join(sys.prefix, "bin"))}
shebang = re.compile(rb"#! ?(?:/bin/sh\n'''exec' )?['\"]?(/.+?)/python[0-9.]*['\"]?(?: \"[$]0\" .*)? *\n")
for place in (sysconfig.get_path("scripts"), here, "/usr/local/bin"):
    for name in sorted(next(os.walk(place), ("", (), ()))[2]):
        path = os.path.join(place, name)
        if os.path.isfile(path) and os.access(path, os.R_OK | os.X_OK):
            with open(path, "rb") as file:
                begins = shebang.match(file.read(1000))
            if begins and os.path.realpath(os.fsdecode(begins[1])) in homes:
                scripts.setdefault(name, path)
free, number = PREFIX, 1
while os.path.exists(free):
    number += 1
    free = PREFIX + str(number)
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2],
    "patch": sys.version_info[2],
    "machine": platform.machine(),
    "glibc": platform.libc_ver()[1],
    "executable": os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    "site_dirs": dirs,
    "scripts": list(scripts.values()),
    "installed": found,
    "prefix": free,
}))
""".replace("PREFIX", repr(PREFIX))


MOST_INSTALLED: Final = 5000
MOST_SITES: Final = 50
MOST_SCRIPTS: Final = 2000
_PATH: Final = r"/[^\x00-\x1f\x7f]{1,1000}"
_SCRIPT: Final = re.compile(r"/[ -~]{0,900}/(?!conda|mamba|pip|runner$)\w[\w.+-]{0,99}", re.ASCII)
"""A program that may see more packages; this one, and those that change their own environment, stay in it."""


def probe_image(engine: Engine, image: str, cache_dir: Path) -> PythonFacts:
    """Return the Python and the packages of an image, which must be in the engine.

    Raises:
        BuildFailed: it has no Python.
    """
    return ask_python(engine, image, SCRIPT, cache_dir / "packages" / "images", parse_facts)


def parse_facts(found: dict[str, Any]) -> PythonFacts:
    """Return the facts that the script printed, or whatever else a python3 of the user's own image printed.

    Distributions and scripts with odd names or versions are left out: they become names of files.

    Raises:
        ValueError: something is not what the script prints.
    """
    major, minor = (int(part) for part in (found["glibc"] or "2.17").split(".")[:2])
    return PythonFacts(
        python=_matching(r"[0-9]{1,2}\.[0-9]{1,3}", found["python"]),
        patch=int(_matching(r"[0-9]{1,3}", str(found["patch"]))),
        machine=_matching(r"[A-Za-z0-9_]{1,40}", found["machine"]),
        glibc=(major, minor),
        executable=_matching(_PATH, found["executable"]),
        site_dirs=tuple(_matching(_PATH, each) for each in found["site_dirs"][:MOST_SITES]),
        scripts=tuple(each for each in found["scripts"][:MOST_SCRIPTS] if _SCRIPT.fullmatch(each)),
        installed=tuple(_installed(found["installed"].items())),
        prefix=_matching(rf"{re.escape(PREFIX)}[0-9]{{0,4}}", found["prefix"]),
    )


def _installed(found: Iterable[tuple[str, Any]]) -> Iterator[Installed]:
    for name, (version, requires) in sorted(found)[:MOST_INSTALLED]:
        named = re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,198}[a-z0-9])?", name)
        if named and isinstance(version, str) and re.fullmatch(r"[A-Za-z0-9.!+_-]{1,100}", version):
            try:
                normal = str(Version(version))  # the resolver answers with it
            except InvalidVersion:  # such as that of a Debian package: the resolver would refuse all others
                continue
            needs = tuple(each for each in requires if isinstance(each, str) and each.isprintable())
            yield Installed(name, normal, needs)


def _matching(pattern: str, text: str) -> str:
    if re.fullmatch(pattern, text) is None:
        raise ValueError(f"{text[:40]!r} is not what was asked for")
    return text
