"""Where a base image comes from: a local tag, a registry, or a bootstrap without one.

In this order, because each is slower than the one before and asks more of the outside.
A base that was found is asked once, in a container, what it holds; what it lacks of a
compiler is installed with its own package tool, outside of any build, so that a
certificate needed for that can be shown to it without staying in a layer.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from images.bootstrap import Bootstrap, bootstrap
from images.errors import BuildFailed
from images.log import BuildLog
from images.ports import Engine, Image, Step
from images.recipe import Base
from images.settings import LOCAL_BASE, ImageSettings

_PACKAGES: Final = {"cc": "gcc", "cxx": "g++", "headers": "python3-dev", "venv": "python3-venv"}

_QUESTION: Final = """
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

_OPTIONS: Final = "/run/runner-apt.conf"
_CERTIFICATE: Final = "/run/runner-ca.pem"
_INSTALL: Final = (
    f"export APT_CONFIG={_OPTIONS} && apt-get update && apt-get install -y --no-install-recommends $PACKAGES"
    " && apt-get clean && rm -rf /var/lib/apt/lists/*"
)


def resolve(engine: Engine, settings: ImageSettings, log: BuildLog) -> Base:
    """Return a base that can be built on, fetching or making it if no local tag is there.

    Raises:
        BuildFailed: there is none, with one line for each way that was tried.
    """
    image = _local(engine, settings) or _fetched(engine, settings, log)
    tag = f"runner-base:id-{image.id.removeprefix('sha256:')[:16]}"
    facts = _facts(engine, image.id, settings)
    missing = [_PACKAGES[part] for part, there in facts["has"].items() if not there]
    if missing:
        return _completed(engine, image, missing, settings, log)
    if tag not in image.tags:
        engine.tag(image.id, tag)
    major, minor = (int(part) for part in facts["glibc"].split(".")[:2])
    return Base(image.id, tag, facts["python"], facts["machine"], (major, minor))


def _local(engine: Engine, settings: ImageSettings) -> Image | None:
    names = (settings.base,) if settings.base else tuple(filter(None, (LOCAL_BASE, settings.pull)))
    return next(filter(None, map(engine.image, names)), None)


def _fetched(engine: Engine, settings: ImageSettings, log: BuildLog) -> Image:
    tried = []
    reference = settings.base or settings.pull
    if reference is not None:
        try:
            return _pulled(engine, reference, log)
        except BuildFailed as error:
            tried.append(str(error))
            log.line(f"base: {error}")
    if settings.base is None:
        try:
            return _bootstrapped(engine, log)
        except BuildFailed as error:
            tried.append(str(error))
    raise BuildFailed("; ".join(["base image: none to be had", *tried]))


def _pulled(engine: Engine, reference: str, log: BuildLog) -> Image:
    log.line(f"base: pulling {reference}")
    engine.pull(reference)
    return _known(engine, reference)


def _bootstrapped(engine: Engine, log: BuildLog) -> Image:
    bootstrap(engine, Bootstrap(), log)
    return _known(engine, LOCAL_BASE)


def _known(engine: Engine, reference: str) -> Image:
    image = engine.image(reference)
    if image is None:
        raise BuildFailed(f"base image {reference}: was fetched and is not in the engine")
    return image


def _facts(engine: Engine, image: str, settings: ImageSettings) -> dict[str, Any]:
    """Return what the base answers about itself; kept by image id, which cannot change its meaning."""
    kept = settings.cache_dir / "bases" / f"{image.removeprefix('sha256:')}.json"
    if kept.is_file():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    end = engine.step(Step(image, ("python3", "-c", _QUESTION)))
    if end.exit_code != 0:
        raise BuildFailed(f"base image {image[:19]}: python3 ends with {end.exit_code}: {end.output.strip()}")
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.write_text(end.output)
    partial.replace(kept)
    answer: dict[str, Any] = json.loads(end.output)
    return answer


def _completed(
    engine: Engine, image: Image, missing: list[str], settings: ImageSettings, log: BuildLog
) -> Base:
    """Return the base with what it lacks installed: once, under a tag that names both."""
    tag = f"runner-base:completed-{image.id.removeprefix('sha256:')[:16]}"
    if engine.image(tag) is None:
        log.line(f"base: installing {' '.join(missing)}")
        with tempfile.TemporaryDirectory() as scratch:
            options = Path(scratch) / "apt.conf"
            options.write_text(apt_options(settings, os.environ))
            end = engine.step(_install(image.id, tag, missing, options, settings))
        log.lines(end.output.splitlines())
        if end.exit_code != 0:
            raise BuildFailed(f"base image: installing {' '.join(missing)} ends with {end.exit_code}")
    completed = replace(settings, base=tag)
    return resolve(engine, completed, log)


def _install(image: str, tag: str, packages: list[str], options: Path, settings: ImageSettings) -> Step:
    """Return the step; what belongs to this host is in files mounted below /run, which is not committed."""
    files = {_OPTIONS: options} | ({_CERTIFICATE: settings.ca_file} if settings.ca_file else {})
    argv = ("sh", "-c", _INSTALL.replace("$PACKAGES", " ".join(packages)))
    return Step(image, argv, network=True, root=True, files=files, commit=tag)


def apt_options(settings: ImageSettings, environment: Mapping[str, str]) -> str:
    """Return apt's configuration for this host: its proxies and the extra certificate."""
    proxies = {name: environment.get(f"{name}_proxy") for name in ("http", "https")}
    lines = [f'Acquire::{name}::Proxy "{address}";' for name, address in proxies.items() if address]
    if settings.ca_file is not None:
        lines.append(f'Acquire::https::CAInfo "{_CERTIFICATE}";')
    return "".join(f"{line}\n" for line in lines)
