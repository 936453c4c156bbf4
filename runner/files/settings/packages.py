"""The settings of packages: where they come from, and what a job may have."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from runner.base.textfile import quoted
from runner.files.types import Bytes, ClosedModel

GIB = 1024**3


def check_index(value: str) -> str:
    """Return the address of an index."""
    scheme, mark, rest = value.partition("://")
    if not mark or scheme not in {"http", "https", "file"} or not rest.strip():
        raise ValueError(
            f"must be an address such as https://packages.example.org/simple, not {quoted(value)}"
        )
    if "@" in rest.partition("/")[0]:
        raise ValueError("must have no user and password; write them into the file that credentials names")
    return value


def _patterns(value: object) -> object:
    if value == "all":
        raise ValueError('must be a list of packages; ["*"] allows all of them')
    return value


IndexUrl = Annotated[str, AfterValidator(check_index)]
Place = Annotated[str, Field(min_length=1, max_length=4096)]


SystemPattern = Annotated[str, Field(pattern=r"^[a-z0-9*?][a-z0-9+.*?-]*$", max_length=200)]
"""A Debian package, or many; ``*`` stands for any characters and ``?`` for one."""


class PackagesSettings(ClosedModel):
    """Sources of the packages of jobs, and their limits."""

    index_url: IndexUrl | None = None
    """The index of packages; null: PyPI."""

    extra_index_urls: tuple[IndexUrl, ...] = ()
    """Further indexes, which are asked first."""

    find_links: tuple[Place, ...] = ()
    """Folders with wheels, or addresses of pages that list wheels."""

    no_index: bool = False
    """True: packages come from find_links alone, as on a machine without a network."""

    credentials: str | None = None
    """A file in the format of netrc(5) with the passwords of indexes; no user can read it."""

    keep_bytes: Bytes | None = Field(64 * GIB, ge=0)
    """Disk space of images with packages; the least recently used ones go, none that a job needs.  Null: all
    are kept."""

    system: Annotated[tuple[SystemPattern, ...] | None, BeforeValidator(_patterns)] = None
    """Debian packages that jobs may have (``image.system``), also as patterns such as ``libgl*``.  Null: all
    in the daemon of one user, none in that of all users."""

    dockerfiles: bool | None = None
    """True: jobs may be built from a Dockerfile of their own (``image.dockerfile``).  Null: in the daemon
    of one user, not in that of all users."""

    dockerfile_network: Literal["none", "bridge"] | None = None
    """Reach of the commands of such a Dockerfile.  ``bridge``: the engine's default network, and through it
    also services of this host.  Null: ``bridge`` in the daemon of one user, ``none`` in that of all users."""

    time_limit_s: float = Field(600.0, ge=1, le=86400)
    """Longest time of one resolution or one download, in seconds."""

    memory_bytes: Bytes = Field(4 * GIB, ge=256 * 1024**2)
    """Address space of one resolution or one download."""
