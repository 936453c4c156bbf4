"""Finds a base image: a local tag, a pull from a registry, or a bootstrap without one.

They are tried in this order, because each is slower than the one before and needs more of the network.  A
probe in a container reports the properties of a base.  Missing packages, such as a compiler, are installed by
the base's own package manager outside of any build, so that a certificate can be mounted without staying in a
layer.
"""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from images.bootstrap import Bootstrap, bootstrap
from images.errors import BuildFailed, HostFault
from images.log import BuildLog
from images.ports import Engine, Image, Step
from images.recipe import Base
from images.settings import LOCAL_BASE, ImageSettings

T = TypeVar("T")

_PACKAGES: Final = {"cc": "gcc", "cxx": "g++", "headers": "python3-dev", "venv": "python3-venv"}

_PROBE: Final = """
import importlib.util, json, os, platform, shutil, sys, sysconfig
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2],
    "machine": platform.machine(),
    "glibc": platform.libc_ver()[1],
    "has": {
        "cc": shutil.which("gcc") is not None,
        "cxx": shutil.which("g++") is not None,
        "headers": os.path.exists(sysconfig.get_path("include") + "/Python.h"),
        "venv": importlib.util.find_spec("ensurepip") is not None,
    },
}))
"""

OPTIONS: Final = "/run/runner-apt.conf"
CERTIFICATE: Final = "/run/runner-ca.pem"
_INSTALL: Final = (
    f"export APT_CONFIG={OPTIONS} && apt-get update && apt-get install -y --no-install-recommends $PACKAGES"
    " && apt-get clean && rm -rf /var/lib/apt/lists/*"
)
_NOBODY: Final = (65532, 65532)
ASKED_BYTES: Final = 2 * 1024**3
ASKED_WITHIN_S: Final = 300.0
"""Limits of memory and time for the Python of an image, which may be any program, to say what it is."""

_UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""The errors of an answer that is none."""

_APT_FAILED: Final = 100
"""The exit code of ``apt-get``, mostly for an archive that does not answer."""


def resolve(engine: Engine, settings: ImageSettings, log: BuildLog) -> Base:
    """Return a complete base; pull or bootstrap it if there is no local one.

    Raises:
        BuildFailed: there is none; the message names each attempt.
    """
    image = _local(engine, settings) or _fetch(engine, settings, log)
    tag = f"runner-base:id-{image.id.removeprefix('sha256:')[:16]}"
    facts = _probe(engine, image.id, settings)
    missing = [_PACKAGES[part] for part, present in facts["has"].items() if not present]
    if missing:
        return _complete(engine, image, missing, settings, log)
    if tag not in image.tags:
        engine.tag(image.id, tag)
    major, minor = (int(part) for part in facts["glibc"].split(".")[:2])
    return Base(image.id, tag, facts["python"], facts["machine"], (major, minor))


def _local(engine: Engine, settings: ImageSettings) -> Image | None:
    names = (settings.base,) if settings.base else tuple(filter(None, (LOCAL_BASE, settings.pull)))
    return next(filter(None, map(engine.image, names)), None)


def _fetch(engine: Engine, settings: ImageSettings, log: BuildLog) -> Image:
    tried: list[BuildFailed] = []
    reference = settings.base or settings.pull
    if reference is not None:
        try:
            return _pull(engine, reference, log)
        except BuildFailed as error:
            tried.append(error)
            log.line(f"base: {error}")
    if settings.base is None:
        try:
            return _bootstrap(engine, log)
        except BuildFailed as error:
            tried.append(error)
    kind = HostFault if any(isinstance(each, HostFault) for each in tried) else BuildFailed
    raise kind("; ".join(["base image: none is available", *map(str, tried)]))


def _pull(engine: Engine, reference: str, log: BuildLog) -> Image:
    log.line(f"base: pulling {reference}")
    engine.pull(reference)
    return _existing(engine, reference)


def _bootstrap(engine: Engine, log: BuildLog) -> Image:
    bootstrap(engine, Bootstrap(), log)
    return _existing(engine, LOCAL_BASE)


def _existing(engine: Engine, reference: str) -> Image:
    image = engine.image(reference)
    if image is None:
        raise BuildFailed(f"base image {reference}: was fetched but is not in the engine")
    return image


def _probe(engine: Engine, image: str, settings: ImageSettings) -> dict[str, Any]:
    """Return the properties of a base."""
    return ask_python(engine, image, _PROBE, settings.cache_dir / "bases", _facts)


def _facts(found: dict[str, Any]) -> dict[str, Any]:
    return {fact: found[fact] for fact in ("has", "glibc", "python", "machine")}


def ask_python(
    engine: Engine, image: str, script: str, kept: Path, parse: Callable[[dict[str, Any]], T]
) -> T:
    """Return what a script tells of an image, in a container without a network; it is kept by image id.

    Raises:
        BuildFailed: the image has no Python, or that tells something else.
    """
    cached = kept / f"{image.removeprefix('sha256:')}.json"
    if cached.is_file():
        with suppress(*_UNREADABLE):  # torn, or without what is asked now
            return parse(json.loads(cached.read_text()))
    asked = Step(
        image, ("python3", "-c", script), user=_NOBODY, memory_bytes=ASKED_BYTES, seconds=ASKED_WITHIN_S
    )
    end = engine.step(asked)
    if end.exit_code != 0:
        raise BuildFailed(f"image {image[:19]}: python3 ends with {end.exit_code}: {end.output.strip()}")
    lines = (line for line in reversed(end.output.split("\n")) if line.startswith("{"))
    answer = next(lines, "")  # others are warnings
    try:
        found = parse(json.loads(answer))
    except _UNREADABLE as error:
        raise BuildFailed(f"image {image[:19]}: python3 does not say what it is") from error
    cached.parent.mkdir(parents=True, exist_ok=True)
    draft = cached.with_suffix(f".{os.getpid()}")
    draft.write_text(answer)
    draft.replace(cached)
    return found


def _complete(
    engine: Engine, image: Image, missing: list[str], settings: ImageSettings, log: BuildLog
) -> Base:
    """Return the base with its missing packages installed, under a tag that is derived from its id."""
    tag = f"runner-base:completed-{image.id.removeprefix('sha256:')[:16]}"
    if engine.image(tag) is None:
        log.line(f"base: installing {' '.join(missing)}")
        with tempfile.TemporaryDirectory() as scratch:
            options = Path(scratch) / "apt.conf"
            options.write_text(apt_options(settings.ca_file, os.environ))
            end = engine.step(_install(image.id, tag, missing, options, settings))
        log.lines(end.output.splitlines())
        if end.exit_code != 0:
            kind = HostFault if end.exit_code == _APT_FAILED else BuildFailed
            last = end.output.strip().rpartition("\n")[2]
            raise kind(f"base image: installing {' '.join(missing)} ends with {end.exit_code}: {last}")
    completed = replace(settings, base=tag)
    return resolve(engine, completed, log)


def _install(image: str, tag: str, packages: list[str], options: Path, settings: ImageSettings) -> Step:
    """Return the step that installs packages; host files are mounted below /run, which is not committed."""
    files = {OPTIONS: options} | ({CERTIFICATE: settings.ca_file} if settings.ca_file else {})
    argv = ("sh", "-c", _INSTALL.replace("$PACKAGES", " ".join(packages)))
    return Step(image, argv, network=True, root=True, files=files, commit=tag)


def apt_options(ca_file: Path | None, environment: Mapping[str, str]) -> str:
    """Return the configuration of apt for this host: its proxies and the additional certificate."""
    proxies = {name: environment.get(f"{name}_proxy") for name in ("http", "https")}
    lines = [f'Acquire::{name}::Proxy "{address}";' for name, address in proxies.items() if address]
    if ca_file is not None:
        lines.append(f'Acquire::https::CAInfo "{CERTIFICATE}";')
    return "".join(f"{line}\n" for line in lines)
