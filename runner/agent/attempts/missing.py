"""Files in the directory of its code that a program misses: ignored data, a module off its path."""

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from jobs.contract import Program
from runner.agent.attempts.start import describe_command
from runner.base.textfile import one_line
from runner.files.host_paths import explain_missing_path
from runner.files.left_out import find_missed
from runner.files.revision import Revision

_NO_MODULE: Final = re.compile(r"No module named ['\"]?([A-Za-z_][\w.]{0,200})")
_NO_NAME: Final = re.compile(
    r"cannot import name '(\w{1,200})' from (?:partially initialized module )?'([A-Za-z_][\w.]{0,200})'"
)
_NO_LIBRARY: Final = re.compile(
    r"\b((lib[A-Za-z][\w.+-]{0,60}?)\.so\.?[\w.]{0,20}): cannot open shared object file"
)
_NO_COMMAND: Final = re.compile(r"No such file or directory: '([A-Za-z0-9][\w.+-]{0,60})'")
_PIP: Final = re.compile(
    r"pip3? install (?:(?:-U|--upgrade) )?['\"`]?([A-Za-z0-9][\w.,\[\]<>=!~-]{0,80}[\w\]])"
)
"""Advice of a program to a person at a terminal."""
_DRIVER: Final = re.compile(r"lib(cuda|nvidia-ml|amdhip64|hsa-runtime64)")
_NO_FILE: Final = re.compile(r"No such file|FileNotFoundError|[Uu]nable to open|does not exist|not found")
_QUOTED: Final = re.compile(r"'([^']{1,1000})'|\"([^\"]{1,1000})\"")
_PACKAGES: Final = {
    "yaml": "PyYAML",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "PIL": "Pillow",
    "cv2": "opencv-python-headless",
    "bs4": "beautifulsoup4",
    "dotenv": "python-dotenv",
    "dateutil": "python-dateutil",
    "git": "GitPython",
    "hydra": "hydra-core",
    "absl": "absl-py",
    "attr": "attrs",
    "umap": "umap-learn",
    "faiss": "faiss-cpu",
    "Crypto": "pycryptodome",
}
"""Packages whose module has another name."""

_LIBRARIES: Final = {
    **dict.fromkeys(("libglib-2.0", "libgthread-2.0", "libgio-2.0"), "libglib2.0-0"),
    "libGLU": "libglu1-mesa",
    "libgeos_c": "libgeos-c1v5",
    "libmpi": "openmpi-bin",
}
"""Debian packages of libraries that are not called after them."""

_PROJECTS: Final = ("pyproject.toml", "setup.cfg", "setup.py")


def explain_missing(
    said: str,
    revision: Revision,
    work_dir: Path,
    paths_in_code: Callable[[], Collection[str]],
    *,
    in_container: bool,
) -> str:
    """Return the file or module that a program misses, and what to do; empty if that is not known.

    Args:
        said: The exception that has ended the program, or its line that says what went wrong; or empty.
        revision: What was submitted.
        work_dir: The directory of the program on this host.
        paths_in_code: Returns the paths in the snapshot.
        in_container: Whether the program ran in one.
    """
    if (library := _NO_LIBRARY.search(said)) is not None:
        return _no_library(library[1], library[2], in_container=in_container)
    if revision.code is None:
        return _outside(revision, said) if in_container else ""
    if "attempted relative import with no known parent" in said:
        return _as_module(revision)
    if (name := _NO_NAME.search(said)) is not None:
        return _not_in_module(name[2], name[1], paths_in_code())
    module = _NO_MODULE.search(said)
    if module is not None:
        place = module[1].replace(".", "/")
        found = [f"{below}{place}{end}" for below in ("", "src/") for end in ("", ".py")]
        paths = paths_in_code()
        return (
            _left_out(revision, found, work_dir, in_container=in_container)
            or _not_in_package(module[1], paths)
            or _off_path(module[1], paths)
            or _of_another_name(module[1])
        )
    told = ""
    if _NO_FILE.search(said):
        told = _left_out(revision, _named(said), work_dir, in_container=in_container)
    return told or (_outside(revision, said) or _not_of_image(said, paths_in_code) if in_container else "")


def _not_of_image(line: str, paths_in_code: Callable[[], Collection[str]]) -> str:
    """Return the way to a command or package that an exception asks for, and that nothing in the code is."""
    command, package = _NO_COMMAND.search(line), _PIP.search(line)
    name = command[1] if command else package[1] if package else ""
    if not name or _off_path(re.split(r"[^\w-]", name)[0].replace("-", "_"), paths_in_code()):
        return ""
    if command:
        return describe_command(name)
    return f"packages are asked for before: runner run --with {shlex.quote(name)}, or image.requirements"


def _named(line: str) -> Iterator[str]:
    """Yield the paths that a line names, in quotes or as words."""
    yield from (first or second for first, second in _QUOTED.findall(line))
    yield from (word.strip("'\"`()[]{},;:.") for word in line.split() if {"/", "."} & set(word))


def _left_out(
    revision: Revision, paths: Iterator[str] | list[str], work_dir: Path, *, in_container: bool
) -> str:
    """Return the reason why one of several paths is not in the code; empty if none was left out."""
    directory, left_out = revision.code_directory(), revision.code.left_out if revision.code else ()
    given = tuple(revision.places_in_job()) if in_container else ()
    for path in paths:
        inner = os.path.relpath(path, work_dir) if path.startswith(f"{work_dir}/") else path
        if (told := find_missed(left_out, directory, os.path.normpath(inner), given)) is not None:
            return told.removeprefix("workload.code: ")
    return ""


def _outside(revision: Revision, said: str) -> str:
    """Return that a path is one of the host, or that nothing is mounted there."""
    paths = (path for path in _named(said) if path.startswith("/")) if _NO_FILE.search(said) else ()
    return next(filter(None, (explain_missing_path(revision, path) for path in paths)), "")


def _no_library(file: str, stem: str, *, in_container: bool) -> str:
    """Return that a library of the system is missing, with the package that has it by Debian's rule."""
    if not in_container:
        return f"the library {file} is not on this machine"
    if _DRIVER.fullmatch(stem):
        return f"the library {file} is the driver's: a job has it if it asks for a GPU: runner run --gpus 1"
    version = file.removeprefix(stem).removeprefix(".so").removeprefix(".").partition(".")[0]
    name = stem.lower().replace("_", "-")
    package = _LIBRARIES.get(stem, f"{name}{'-' if name[-1].isdigit() else ''}{version}")
    ways = f"runner run --system {package}, or image.system: [{package}], installs it"
    return f"the library {file} is not in the image; {ways}"


def _as_module(revision: Revision) -> str:
    """Return the line that starts a script of a package as a module of it; empty without a script."""
    plan = revision.job.workload
    command = plan.command if isinstance(plan, Program) else ()
    script = next((word for word in command if word.endswith(".py") and "/" in word), None)
    if script is None or script.startswith(("/", "..")):
        return ""
    module = os.path.normpath(script).removesuffix(".py").replace("/", ".")
    return (
        f"a script of a package is started as its module: python -m {module} in place of {one_line(script)}"
    )


def _not_in_module(module: str, name: str, paths: Collection[str]) -> str:
    """Return that a module of the code lacks a name; empty if the module is another package's."""
    place = module.replace(".", "/")
    places = (f"{place}.py", f"{place}/", f"src/{place}.py", f"src/{place}/")
    if not any(path.startswith(places) for path in paths):
        return ""
    fact = f"{module} in the code of the job has no name {name}"
    return f"{fact}; if a package so called is meant, rename it there"


def _not_in_package(module: str, paths: Collection[str]) -> str:
    """Return that a package beside the script lacks a module, and one with a similar name."""
    package, dot, name = module.rpartition(".")
    inner = [
        path for path in paths if path.startswith(f"{module.partition('.')[0]}/") and path.endswith(".py")
    ]
    known = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in inner]
    if not dot or not known or module in known:
        return ""
    near = get_close_matches(module, known, 1)
    meant = f"; did you mean {one_line(near[0])}?" if near else ""
    return f"{package} in the code of the job has no module {name}{meant}"


def _of_another_name(module: str) -> str:
    """Return the package of a module that has another name."""
    package = _PACKAGES.get(module.partition(".")[0])
    return (
        ""
        if package is None
        else f"its package is {package}: runner run --with {package}, or image.requirements"
    )


def _off_path(module: str, paths: Collection[str]) -> str:
    """Return the place in the code of a module that Python has not found; empty if it is not there."""
    top = module.partition(".")[0]
    whole = re.compile(rf"(?:(.*)/)?{top}(?:\.py|/__init__\.py|\.[\w-]+\.so)")
    part = re.compile(rf"(?:(src)/)?{top}/.*\.(?:py|so)")  # of a package without __init__.py
    found = [*filter(None, map(whole.fullmatch, paths))] or [*filter(None, map(part.fullmatch, paths))]
    if not found:
        return ""
    below = min((match[1] or "." for match in found), key=lambda path: (path.count("/"), path != ".", path))
    place = "in the code of the job" if below == "." else f"in the code of the job, below {one_line(below)}"
    project = " or -e . in the requirements" if any(name in paths for name in _PROJECTS) else ""
    return f"{top} is {place}: runner run --env PYTHONPATH={one_line(below)}{project} puts it on the path"
