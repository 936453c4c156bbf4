"""Debian packages of a job, as one layer on an image that has ``apt``.

The packages are found and downloaded in a container that does nothing else and has the network, and installed
in one that has no network.  Neither has anything of a user.  The layer holds what the installation has
changed, sorted and with one time, so that the same packages on the same image give the same layer as far as
their own scripts do.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from images.addressed import AddressedImage
from images.bases import CERTIFICATE, OPTIONS, apt_options
from images.digest import digest_of
from images.errors import BuildFailed
from images.log import BuildLog
from images.packages.layer import PART_BYTES
from images.packages.lock import SystemPackage
from images.packages.resolve import IndexUnavailable, Unresolvable
from images.packages.values import Limits
from images.ports import Addition, Engine, Step, StepEnd
from images.settings import Accelerator

SCHEMA: Final = 1
"""Increment it when the same packages give a different layer."""

_FETCH: Final = """
export APT_CONFIG=/run/runner-apt.conf
apt-get -q update || exit 75
shift
apt-get -q -y --download-only --no-install-recommends -o Dir::Cache::archives=/out install "$@" || exit 1
rm -rf /out/partial /out/lock
chown -R "$OWNER" /out
"""
_UPDATE_FAILED: Final = 75
_MORE_OPTIONS: Final = """\
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
"""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class SystemStore:
    """Resolves Debian packages, and finds and builds the images with them."""

    cache_dir: Path
    engine: Callable[[], Engine]
    limits: Limits
    ca_file: Path | None = None

    def resolve(self, wanted: Iterable[str], below: str, log: BuildLog) -> tuple[SystemPackage, ...]:
        """Return the packages, with all that they need and the image lacks; they are kept.

        Raises:
            Unresolvable: there is no such package, or some do not go together.
            IndexUnavailable: the archive does not answer.
        """
        names = tuple(wanted)
        log.line(f"system packages: looking for {' '.join(names)}")
        with tempfile.TemporaryDirectory(dir=self._place("debs"), prefix=".fetch-") as made:
            found = self._fetch(names, below, Path(made), log)
            for package, path in found.items():
                path.replace(self._kept(package))
        size = sum(package.size for package in found)
        log.line(f"system packages: {len(found)} packages, {size / 1024**2:.1f} MiB")
        return tuple(sorted(found, key=lambda package: package.name))

    def ensure(
        self, packages: tuple[SystemPackage, ...], below: str, accelerator: Accelerator, log: BuildLog
    ) -> str:
        """Return the id of the image with the packages on an image that is in the engine.

        Raises:
            BuildFailed: a package has vanished from the archive, or its installation fails.
            EngineUnavailable: the engine does not answer.
            BuildCancelled: the token of the log was cancelled.
        """
        if not packages:
            return below
        debs = sorted(each.sha256 for each in packages)
        address = digest_of({"schema": SCHEMA, "below": below, "debs": debs})
        image = AddressedImage("system", accelerator, address)
        build = partial(self._build, image, packages, below, log)
        return image.ensure(self.engine(), self.cache_dir, log, build)

    # --- the two containers

    def _fetch(
        self, names: tuple[str, ...], below: str, out: Path, log: BuildLog
    ) -> Mapping[SystemPackage, Path]:
        options = out / ".apt.conf"
        options.write_text(apt_options(self.ca_file, os.environ) + _MORE_OPTIONS)
        script = _FETCH.replace("$OWNER", f"{os.geteuid()}:{os.getegid()}")
        given = {OPTIONS: options} | ({CERTIFICATE: self.ca_file} if self.ca_file else {})
        end = self._step(
            Step(
                below,
                ("sh", "-c", script, "sh", "--", *names),
                network=True,
                root=True,
                files=given,
                writable={"/out": out},
                memory_bytes=self.limits.memory_bytes,
                seconds=self.limits.seconds,
            ),
            log,
        )
        if end.exit_code == _UPDATE_FAILED:
            raise IndexUnavailable(f"the Debian archive: {_last_error(end.output)}")
        if end.exit_code != 0:
            raise _unresolvable(names, end.output)
        return {_package(path): path for path in sorted(out.glob("*.deb"))}

    def _build(
        self, image: AddressedImage, packages: tuple[SystemPackage, ...], below: str, log: BuildLog
    ) -> None:
        self._have(packages, below, log)
        log.line(f"system packages: installing {' '.join(each.name for each in packages)}")
        with tempfile.TemporaryDirectory(dir=self._place("debs"), prefix=".install-") as made:
            debs, out = Path(made) / "debs", Path(made) / "out"
            debs.mkdir()
            out.mkdir()
            for package in packages:
                (debs / package.file).hardlink_to(self._kept(package))
            self._install(below, debs, out, log)
            removed = tuple(json.loads((out / "removed.json").read_text()))
            with (out / "layer.tar").open("rb") as file:
                size, parts = os.fstat(file.fileno()).st_size, iter(partial(file.read, PART_BYTES), b"")
                addition = Addition(image.tag, below, image.labels(below), removed=removed)
                told = log.counted(parts, size, "system packages: image layer")
                self.engine().add_layer(addition, told, log.token)

    def _install(self, below: str, debs: Path, out: Path, log: BuildLog) -> None:
        script = files("images.packages").joinpath("install_debs.py").read_text()
        owner = f"{os.geteuid()}:{os.getegid()}"
        end = self._step(
            Step(
                below,
                ("python3", "-I", "-c", script, "/run/debs", "/out", owner),
                root=True,
                files={"/run/debs": debs},
                writable={"/out": out},
                memory_bytes=self.limits.memory_bytes,
                seconds=self.limits.seconds,
            ),
            log,
        )
        if end.exit_code != 0:
            raise BuildFailed(f"system packages: the installation fails: {_last_error(end.output)}")

    def _step(self, step: Step, log: BuildLog) -> StepEnd:
        end = self.engine().step(step, log.token)
        log.lines(line for line in end.output.splitlines() if line.strip())
        return end

    # --- the packages that are kept

    def _have(self, packages: tuple[SystemPackage, ...], below: str, log: BuildLog) -> None:
        """Download the packages that are not kept any more.

        Raises:
            BuildFailed: the archive does not have one of them any more, or has another one under its version.
        """
        missing = [each for each in packages if not self._kept(each).is_file()]
        if not missing:
            return
        with tempfile.TemporaryDirectory(dir=self._place("debs"), prefix=".fetch-") as made:
            try:
                found = self._fetch(
                    tuple(f"{each.name}={each.version}" for each in missing), below, Path(made), log
                )
            except Unresolvable as error:
                raise BuildFailed(f"system packages: gone from the archive: {error}") from error
            for package in missing:
                if package not in found:
                    raise BuildFailed(
                        f"{package.file}: the archive has another package under this version now"
                    )
                found[package].replace(self._kept(package))

    def _kept(self, package: SystemPackage) -> Path:
        return self._place("debs") / package.sha256

    def _place(self, name: str) -> Path:
        place = self.cache_dir / "packages" / name
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
        return place


def _package(path: Path) -> SystemPackage:
    """Return the package of a file as ``apt`` names it."""
    name, version, architecture = path.name.removesuffix(".deb").split("_")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return SystemPackage(name, unquote(version), architecture, digest, path.stat().st_size)


def _unresolvable(names: tuple[str, ...], output: str) -> Unresolvable:
    """Return the error of packages that cannot be had; it begins with the first that is named."""
    reason = _last_error(output)
    errors = "\n".join(_errors(output)) or output
    named = next((name for name in names if _is_named(name.partition("=")[0], errors)), names[0])
    return Unresolvable(f"{named}: {reason}", output.strip())


def _is_named(name: str, errors: str) -> bool:
    return re.search(rf"(?<![\w+.-]){re.escape(name)}(?![\w+-])", errors) is not None


def _errors(output: str) -> list[str]:
    lines = (line.strip() for line in output.splitlines())
    return [line.removeprefix("E: ") for line in lines if line.startswith("E: ")]


def _last_error(output: str) -> str:
    """Return the first error that ``apt`` tells, or its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next(iter(_errors(output)), lines[-1] if lines else "it says nothing")
