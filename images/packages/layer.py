"""Packages as a layer of an image.

The layer depends on the files alone: they are sorted, belong to root, and have one time.  So the same lock
gives the same layer on every machine.  Its size is known before a file is read.
"""

import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Final

from images.errors import BuildFailed
from images.packages.values import PythonFacts

PART_BYTES: Final = 512 * 1024
"""The size in which the content of a layer is read and written."""

_SCRIPT: Final = """\
#!{prefix}/bin/python
with open({path!r}, "rb") as file:
    code = compile(file.read(), file.name, "exec")
exec(code)
"""

_CREATED_S: Final = 315532800
"""The time of every file, 1980: wheels cannot have an older one."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A member of the layer: its header, and where its content is."""

    header: bytes
    source: Path | bytes = b""
    size: int = 0


class PackageLayer:
    """The files of unpacked packages as a virtual environment.

    Raises:
        BuildFailed: a package contains something that is neither a file nor a directory.
    """

    def __init__(self, root: Path, facts: PythonFacts, *, isolated: bool) -> None:
        self._entries = tuple(_entries(root, facts, isolated=isolated))
        whole = sum(len(each.header) + _padded(each.size) for each in self._entries) + 2 * tarfile.BLOCKSIZE
        self.size = whole + -whole % tarfile.RECORDSIZE

    def parts(self) -> Iterator[bytes]:
        """Yield the content.

        Raises:
            BuildFailed: a file has changed since.
        """
        part, written = bytearray(), 0
        for each in self._entries:
            part += each.header
            for content in _contents(each):
                part += content
                if len(part) >= PART_BYTES:
                    written += len(part)
                    yield bytes(part)
                    part.clear()
            part += bytes(_padded(each.size) - each.size)
        part += bytes(self.size - written - len(part))
        yield bytes(part)


def _padded(size: int) -> int:
    return size + -size % tarfile.BLOCKSIZE


def _contents(entry: _Entry) -> Iterator[bytes]:
    if isinstance(entry.source, bytes):
        yield entry.source
        return
    left = entry.size
    with entry.source.open("rb", buffering=0) as file:
        while part := file.read(min(PART_BYTES, left + 1)):
            left -= len(part)
            yield part
    if left:
        raise BuildFailed(f"{entry.source.name}: has changed while it was read; try again")


def _entries(root: Path, facts: PythonFacts, *, isolated: bool) -> Iterator[_Entry]:
    place = facts.prefix.strip("/")
    parents = place.split("/")[:-1]
    for depth in range(1, len(parents) + 1):
        yield _directory("/".join(parents[:depth]))
    yield _directory(place)
    made = environment_files(root, facts, isolated=isolated)
    above = {str(parent) for name in made for parent in PurePosixPath(name).parents} - {"."}
    for name in sorted({*made, *above, *_names(root)}):
        path = f"{place}/{name}"
        if name in above:
            yield _directory(path)
        elif isinstance(content := made.get(name), str):
            yield _link(path, content)
        elif content is not None:
            yield _file(path, content, len(content), executable=name.startswith("bin/"))
        else:
            yield _unpacked(root / name, path, name)


def environment_files(root: Path, facts: PythonFacts, *, isolated: bool) -> Mapping[str, str | bytes]:
    """Return the files that make packages a virtual environment; a text is the target of a link.

    Programs of the image, such as ``torchrun``, begin with its interpreter, which does not see the packages.
    So each that they do not bring has a namesake in ``bin``, which executes it with theirs.
    """
    site = f"lib/python{facts.python}/site-packages"
    home = facts.executable.rpartition("/")[0]
    about = f"home = {home}\nversion = {facts.python}\ninclude-system-site-packages = false\n"
    seen = "".join(f"import site; site.addsitedir({path!r})\n" for path in facts.site_dirs)
    scripts = {} if isolated else {f"bin/{path.rpartition('/')[2]}": path for path in facts.scripts}
    return {
        **{
            name: _SCRIPT.format(prefix=facts.prefix, path=path).encode()
            for name, path in scripts.items()
            if not os.path.lexists(root / name)
        },
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


def _unpacked(source: Path, path: str, name: str) -> _Entry:
    found = source.lstat()
    if S_ISREG(found.st_mode):
        return _file(path, source, found.st_size, executable=bool(found.st_mode & 0o100))
    if S_ISDIR(found.st_mode):
        return _directory(path)
    if S_ISLNK(found.st_mode):
        raise BuildFailed(f"{name}: a package contains a symbolic link, which no wheel should; leave it out")
    raise BuildFailed(f"{name}: a package contains something that is neither a file nor a directory")


def _header(member: tarfile.TarInfo) -> bytes:
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _member(path: str, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.mode, member.mtime = mode, _CREATED_S
    return member


def _directory(path: str) -> _Entry:
    member = _member(path, 0o755)
    member.type = tarfile.DIRTYPE
    return _Entry(_header(member))


def _link(path: str, target: str) -> _Entry:
    member = _member(path, 0o777)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return _Entry(_header(member))


def _file(path: str, source: Path | bytes, size: int, *, executable: bool = False) -> _Entry:
    member = _member(path, 0o755 if executable else 0o644)
    member.size = size
    return _Entry(_header(member), source, size)


def variables(facts: PythonFacts, inherited: Iterable[str]) -> Mapping[str, str]:
    """Return the variables of an image whose programs see the virtual environment of the packages.

    ``inherited`` are those of the image below, as ``NAME=VALUE``.
    """
    below = dict(each.partition("=")[::2] for each in inherited)
    return {"PATH": f"{facts.prefix}/bin:{below.get('PATH', os.defpath)}", "VIRTUAL_ENV": facts.prefix}
