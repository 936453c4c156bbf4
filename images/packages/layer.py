"""Writes unpacked packages as a layer, and an image of that layer on another image.

The layer depends on the files alone: they are sorted, belong to root, and have one time.  So the same lock
gives the same layer on every machine.
"""

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from images.errors import BuildFailed
from images.packages.values import PythonFacts

CREATED: Final = "1980-01-01T00:00:00Z"
"""The time of every image and file; wheels cannot have an older one."""

_CREATED_S: Final = 315532800
VERSION_LABELS: Final = ("runner.cuda", "runner.rocm")
LAYER_PATH: Final = "packages/layer.tar"


@dataclass(frozen=True, slots=True)
class ImageBelow:
    """The image that a layer is put on."""

    layers: tuple[str, ...]  # digests, the lowest first
    config: Mapping[str, Any]
    architecture: str
    os: str
    labels: Mapping[str, str]  # of the image that is made


def image_below(found: Mapping[str, Any], labels: Mapping[str, str]) -> ImageBelow:
    """Return an image as the engine describes it; ``labels`` are those of the image that is made on it.

    The versions of CUDA and ROCm below it stay among them: launches compare them with the driver.
    """
    layers = tuple(found["RootFS"]["Layers"])
    below = found["Config"].get("Labels") or {}
    kept = {name: below[name] for name in VERSION_LABELS if name in below}
    return ImageBelow(layers, found["Config"], found["Architecture"], found["Os"], {**kept, **labels})


def write_layer(root: Path, facts: PythonFacts, out: IO[bytes], *, isolated: bool) -> str:
    """Write the tar of a layer and return its sha256.

    Raises:
        BuildFailed: a package contains something that is neither a file nor a directory.
    """
    hashing = _Hashing(out)
    with tarfile.open(fileobj=hashing, mode="w", format=tarfile.PAX_FORMAT) as tar:
        place = facts.prefix.strip("/")
        parents = place.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            _add_directory(tar, "/".join(parents[:depth]))
        _add_directory(tar, place)
        made = environment_files(facts, isolated=isolated)
        above = {str(parent) for name in made for parent in PurePosixPath(name).parents} - {"."}
        for name in sorted({*made, *above, *_names(root)}):
            if name in above:
                _add_directory(tar, f"{place}/{name}")
            else:
                _add(tar, root, f"{place}/{name}", name, made)
    return hashing.digest


def environment_files(facts: PythonFacts, *, isolated: bool) -> Mapping[str, str | bytes]:
    """Return the files that make the packages a virtual environment; a text is the target of a link."""
    site = f"lib/python{facts.python}/site-packages"
    home = facts.executable.rpartition("/")[0]
    about = f"home = {home}\nversion = {facts.python}\ninclude-system-site-packages = false\n"
    seen = "".join(f"import site; site.addsitedir({path!r})\n" for path in facts.site_dirs)
    return {
        "pyvenv.cfg": about.encode(),
        "bin/python": facts.executable,
        "bin/python3": "python",
        f"bin/python{facts.python}": "python",
        **({} if isolated else {f"{site}/runner-image.pth": seen.encode()}),
    }


def _names(root: Path) -> Iterator[str]:
    for directory, directories, files in os.walk(root):
        inner = Path(directory).relative_to(root).as_posix()
        for name in (*directories, *files):
            yield name if inner == "." else f"{inner}/{name}"


def _add(tar: tarfile.TarFile, root: Path, path: str, name: str, made: Mapping[str, str | bytes]) -> None:
    if name in made:
        content = made[name]
        if isinstance(content, str):
            _add_link(tar, path, content)
        else:
            _add_file(tar, path, io.BytesIO(content), len(content), executable=False)
        return
    source = root / name
    if source.is_symlink():
        raise BuildFailed(f"{name}: a package contains a symbolic link, which no wheel should; leave it out")
    if source.is_dir():
        _add_directory(tar, path)
    elif source.is_file():
        with source.open("rb") as file:
            found = os.fstat(file.fileno())
            _add_file(tar, path, file, found.st_size, executable=bool(found.st_mode & 0o100))
    else:
        raise BuildFailed(f"{name}: a package contains something that is neither a file nor a directory")


def _member(path: str, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.mode, member.mtime = mode, _CREATED_S
    return member


def _add_directory(tar: tarfile.TarFile, path: str) -> None:
    member = _member(path, 0o755)
    member.type = tarfile.DIRTYPE
    tar.addfile(member)


def _add_link(tar: tarfile.TarFile, path: str, target: str) -> None:
    member = _member(path, 0o777)
    member.type, member.linkname = tarfile.SYMTYPE, target
    tar.addfile(member)


def _add_file(tar: tarfile.TarFile, path: str, content: IO[bytes], size: int, *, executable: bool) -> None:
    member = _member(path, 0o755 if executable else 0o644)
    member.size = size
    tar.addfile(member, content)


class _Hashing(io.RawIOBase):
    """Passes what is written on, and hashes it."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out, self._hash, self._size = out, hashlib.sha256(), 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # noqa: ANN401  (a buffer)
        self._hash.update(data)
        self._size += len(data)
        return self._out.write(data)

    def tell(self) -> int:
        return self._size  # of the layer alone: the padding of a tar depends on it


def with_environment(base: ImageBelow, facts: PythonFacts) -> ImageBelow:
    """Return an image whose programs see the virtual environment of the packages."""
    config = dict(base.config)
    variables = dict(each.partition("=")[::2] for each in config.get("Env") or ())
    variables["PATH"] = f"{facts.prefix}/bin:{variables.get('PATH', os.defpath)}"
    variables["VIRTUAL_ENV"] = facts.prefix
    config["Env"] = [f"{name}={value}" for name, value in variables.items()]
    return replace(base, config=config)


def image_config(base: ImageBelow, layer: str) -> bytes:
    """Return the configuration of an image of one layer on another one; its sha256 is the id of the image."""
    config = dict(base.config)
    config["Labels"] = dict(base.labels)
    content = {
        "architecture": base.architecture,
        "os": base.os,
        "created": CREATED,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [*base.layers, f"sha256:{layer}"]},
        "history": [{"created": CREATED, "created_by": "runner packages"}],
    }
    return json.dumps(content, sort_keys=True).encode()


def write_archive(  # noqa: PLR0913  (one value per part of the image)
    root: Path, facts: PythonFacts, base: ImageBelow, tag: str, out: IO[bytes], *, isolated: bool
) -> None:
    """Write the archive of an image that is one layer with packages on an image that the engine holds.

    Raises:
        BuildFailed: a package contains something that is neither a file nor a directory.
    """
    write = partial(write_layer, root, facts, isolated=isolated)
    _write_archive(write, with_environment(base, facts), tag, out)


def write_layer_archive(layer: IO[bytes], base: ImageBelow, tag: str, out: IO[bytes]) -> None:
    """Write the archive of an image that is one layer, a tar, on an image that the engine holds."""

    def copy(out: IO[bytes]) -> str:
        hashing = _Hashing(out)
        shutil.copyfileobj(layer, hashing)
        return hashing.digest

    _write_archive(copy, base, tag, out)


def _write_archive(write: Callable[[IO[bytes]], str], base: ImageBelow, tag: str, out: IO[bytes]) -> None:
    """Write an archive that names the layers below, and does not contain them.

    The layer is written first, behind a header that is filled in when its size is known.
    """
    out.seek(tarfile.BLOCKSIZE)
    layer = write(out)
    size = out.tell() - tarfile.BLOCKSIZE
    config = image_config(base, layer)
    out.write(bytes(-size % tarfile.BLOCKSIZE))
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    held = [f"held-{number}/layer.tar" for number in range(len(base.layers))]
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": [*held, LAYER_PATH]}]
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, body in (("manifest.json", json.dumps(manifest).encode()), (name, config)):
            _add_file(tar, path, io.BytesIO(body), len(body), executable=False)
    out.seek(0)
    header = _member(LAYER_PATH, 0o644)
    header.size = size
    out.write(header.tobuf(tarfile.GNU_FORMAT))
    out.seek(0)
