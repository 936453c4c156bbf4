"""The values of package resolution: what an image holds, and what a job asks for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from images.settings import Accelerator

COMPILED: Final = ("torchvision", "torchaudio", "torchcodec", "torchtext")
"""The packages that are compiled against one build of torch."""

FAMILY: Final = ("torch", *COMPILED, "triton", "pytorch-triton", "pytorch-triton-rocm")
"""The packages that are built for one accelerator, and therefore come from the base, or from its index."""

COMPANIONS: Final = ("xformers", "torchao", "fbgemm-gpu", "torchrec", "torch-tensorrt")
"""The packages of which the index of torch may have builds for the accelerator, and is asked first.

No metadata tells them: they are the names that ``uv --torch-backend`` knows."""

MAX_ID: Final = 2**32 - 2
"""The largest uid or gid."""

PREFIX: Final = "/opt/packages"
"""Place of the virtual environment of a layer."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A distribution that an image holds."""

    name: str  # normalized
    version: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PythonFacts:
    """The Python of an image, or of this host: what decides which wheels fit."""

    python: str  # "3.11"
    machine: str  # "x86_64"
    glibc: tuple[int, int]
    executable: str  # the interpreter below every virtual environment
    site_dirs: tuple[str, ...]  # where its packages are, in the order of sys.path
    installed: tuple[Installed, ...]
    prefix: str = PREFIX  # a path that is free in the image
    scripts: tuple[str, ...] = ()  # paths of programs that begin with its interpreter
    patch: int = 0  # the last number of "3.11.4"

    @property
    def full_python(self) -> str:
        """The version of Python with its patch, as requirements may ask for it."""
        return f"{self.python}.{self.patch}"

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of the installed distributions by name."""
        return {each.name: each.version for each in self.installed}


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements of a job, independent of files."""

    lines: tuple[str, ...]
    """Requirements as ``requirements.txt`` has them, without options, comments and includes."""
    constraints: tuple[str, ...] = ()
    own_family: frozenset[str] = frozenset()
    """Packages of ``FAMILY`` in another version than that of the base."""
    accelerator: Accelerator = "cpu"
    system: tuple[str, ...] = ()
    """Debian packages, possibly with their versions."""
    elsewhere: frozenset[str] = frozenset()
    """Packages of ``COMPANIONS`` that the index of torch does not have."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source distribution that an index offers."""

    package: str
    version: str
    name: str  # of the file
    url: str
    sha256: str
    size: int | None = None
    needed: str = ""
    """Words for the requirement that needs the package, if none names it."""

    @property
    def named(self) -> str:
        """The words with which a message about it begins, so that it is told at its requirement."""
        return f"{self.package} {self.version}{self.needed}"


@dataclass(frozen=True, slots=True)
class Built:
    """A wheel that was made of a source distribution."""

    source: Source
    wheel: Path


@dataclass(frozen=True, slots=True)
class Indexes:
    """Sources of packages; the operator decides."""

    index_url: str | None = None
    """``None``: PyPI, unless ``find_links`` is all there is."""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    offline: bool = False
    """No index at all: only ``find_links``."""
    torch: Mapping[str, str | None] = field(default_factory=dict)
    """The index of torch and its family by accelerator, for jobs that ask for another torch than the image's.
    Without an entry: PyTorch's own if the torch of the image names its build, and none if ``index_url`` or
    ``offline`` say that this machine has indexes of its own.  ``None``: that of all packages."""
    netrc: Path | None = None
    """A file with credentials by host, in the format of netrc(5)."""
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run of the resolver or of a build."""

    seconds: float = 600.0
    memory_bytes: int = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class Account:
    """User whose rights a program has; ``None`` as the account means those of this process."""

    uid: int
    gid: int
    groups: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        """Refuse ids that a change of rights would pass over: -1 means to the kernel that nothing changes."""
        if not 0 < self.uid <= MAX_ID or not all(0 <= each <= MAX_ID for each in (self.gid, *self.groups)):
            raise ValueError(f"uid {self.uid}, gid {self.gid}: not the ids of a user")
