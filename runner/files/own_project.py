"""The project of a user's own in a directory: what it needs, and what an installer would make of it.

The files of a project are read and never run: ``pyproject.toml``, ``setup.cfg``, and of a ``setup.py`` what
stands there as a literal.  A project of Python alone needs no build: its sources are put on the path of the
job, with what tells its version and its commands.  What has to be compiled is refused.
"""

import ast
import configparser
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from packaging.utils import canonicalize_name

from runner.files.requirements import UNKNOWN, RequirementLine, load_toml, parse_lines

COMPILING: Final = ("maturin", "scikit_build_core", "mesonpy", "setuptools_rust", "skbuild", "enscons")
"""Build backends that compile."""

EXTENSIONS: Final = re.compile(
    r"\b(ext_modules|cffi_modules|cythonize|CUDAExtension|CppExtension|rust_extensions)\b"
)

FILLING: Final = ("pbr", "setupmeta", "d2to1")
"""Plug-ins of setuptools that read the dependencies of a project from files of their own."""

NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?")
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,99}")
_QUOTED: Final = re.compile(r'"([^"\\]*)"|\'([^\'\\]*)\'')
_TARGET: Final = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(:\s*[A-Za-z_][\w.]*)?\s*(\[.*\])?\s*")

READ: Final = ("pyproject.toml", "setup.cfg", "setup.py")

SCRIPT: Final = "# /// script"
"""The line of a script behind which it says in comments what it needs (PEP 723)."""

ReadFile = Callable[[str], str | None]
"""Returns the text of a file of the project by its path below it; None: there is none."""


@dataclass(frozen=True, slots=True)
class OwnProject:
    """A project whose sources are in the code of a job."""

    directory: str  # as a path of the host; of a revision: below the code
    name: str
    version: str
    sources: tuple[str, ...]  # below the directory; empty: src if there is one, else the directory itself
    entry_points: tuple[tuple[str, str, str], ...] = ()  # group, name, target
    asked: bool = True  # as a project, and not as a file that names packages

    @property
    def commands(self) -> tuple[str, ...]:
        """The names of its commands."""
        return tuple(name for group, name, _ in self.entry_points if group == "console_scripts")


def describe_own(project: OwnProject) -> str:
    """Return the parts of a project that a job gets."""
    place = "the code" if project.directory == "." else f"{project.directory} in the code"
    commands = f", with its commands {', '.join(project.commands)}" if project.commands else ""
    version = "of a version that only its build knows" if project.version == UNKNOWN else project.version
    return f"packages: {project.name} {version} is taken from {place}{commands}"


@dataclass(slots=True)
class ReadProject:
    """Contents of the files of a project."""

    name: str = ""
    version: str = ""
    python: str | None = None
    python_file: str = "pyproject.toml"
    dependencies: list[tuple[RequirementLine, str]] = field(default_factory=list)  # and the file
    extras: dict[str, list[tuple[RequirementLine, str]]] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    entry_points: list[tuple[str, str, str]] = field(default_factory=list)
    constraints: list[tuple[RequirementLine, str]] = field(default_factory=list)
    places: dict[str, Any] = field(default_factory=dict)  # of [tool.uv.sources], by package
    members: list[str] = field(default_factory=list)  # of [tool.uv.workspace], as patterns
    compiled: str = ""  # what shows that it is
    is_declared: bool = False  # whether pyproject.toml has [project], and so says what is dynamic

    def own(self, directory: str, *, asked: bool) -> OwnProject:
        """Return the project as a job gets it."""
        version = self.version if _VERSION.fullmatch(self.version) else UNKNOWN
        sources = tuple(dict.fromkeys(self.sources))
        return OwnProject(directory, self.name, version, sources, tuple(self.entry_points), asked)


def read_project(read: ReadFile) -> ReadProject:
    """Return the content of a project's files.

    Raises:
        ValueError: they cannot be read without running them; begins with the name of the file.
    """
    found, texts = ReadProject(), {name: read(name) for name in READ}
    if not any(text is not None for text in texts.values()):
        raise ValueError("has no pyproject.toml, setup.cfg or setup.py")
    dynamic: set[str] = {"dependencies", "optional-dependencies"}
    if (text := texts["pyproject.toml"]) is not None:
        dynamic = _read_pyproject(found, text, read)
    if dynamic and (text := texts["setup.cfg"]) is not None:
        dynamic -= _read_setup_cfg(found, text, read, dynamic)
    if (text := texts["setup.py"]) is not None:
        if EXTENSIONS.search(text):
            found.compiled = found.compiled or "setup.py has extension modules"
        if dynamic:
            dynamic -= _read_setup_py(found, text, dynamic)
    if not found.is_declared and texts["setup.cfg"] is None and texts["setup.py"] is None:
        fact = "pyproject.toml: has no table [project], which names a project and its dependencies"
        raise ValueError(f"{fact}; write a group down: uv pip compile --group NAME -o requirements.txt")
    if found.is_declared and dynamic:
        step = "list them in [project], or in a file that tool.setuptools.dynamic names"
        raise ValueError(f"pyproject.toml: {min(dynamic)} are known only to its build (dynamic); {step}")
    if found.name and NAME.fullmatch(found.name) is None:
        raise ValueError(f"{found.name[:60]}: is not a name of a project")
    return found


def _table(found: object, *path: str) -> dict[str, Any]:
    """Return a table of a document; an empty one if something else is there, or nothing."""
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _texts(value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{where} is not a list of texts")
    return value


def _lines(text: str, values: Sequence[str], file: str) -> list[tuple[RequirementLine, str]]:
    """Return requirements with the first lines of a file that have their texts, in quotes or alone."""
    places: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for found in (line.strip(), *(first or second for first, second in _QUOTED.findall(line))):
            places.setdefault(found, number)
    return [(RequirementLine(each.strip(), places.get(each, 1)), file) for each in values]


# --- pyproject.toml


def _read_pyproject(found: ReadProject, text: str, read: ReadFile) -> set[str]:
    """Add what ``pyproject.toml`` says, and return which of its fields other files say."""
    file = "pyproject.toml"
    try:
        whole = load_toml(text)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    project, tool = _table(whole, "project"), _table(whole, "tool")
    poetry = _table(tool, "poetry")
    named = _table(poetry, "dependencies").keys() - {"python"}
    if (poetry and not project) or (named and "dependencies" not in project):
        step = "list them in [project] dependencies, or write them down: poetry export -o requirements.txt"
        raise ValueError(f"{file}: its dependencies are in the words of Poetry; {step}")
    backend = str(_table(whole, "build-system").get("build-backend", ""))
    if backend.partition(".")[0] in COMPILING or _table(tool, "setuptools").get("ext-modules"):
        found.compiled = f"its build backend is {backend}"
    found.name, found.version = str(project.get("name", "")), str(project.get("version", ""))
    python = project.get("requires-python")
    found.python = python if isinstance(python, str) else None
    found.sources += _sources(tool)
    found.entry_points += _entry_points(project)
    _read_uv(found, tool, text, file)
    dynamic = set(_texts(project.get("dynamic", []), f"{file}: project.dynamic"))
    found.is_declared = bool(project)
    if not project:
        return {"dependencies", "optional-dependencies"}
    wanted = _texts(project.get("dependencies", []), f"{file}: project.dependencies")
    found.dependencies += _lines(text, wanted, file)
    for extra, values in _table(project, "optional-dependencies").items():
        found.extras[canonicalize_name(extra)] = _lines(
            text, _texts(values, f"{file}: the extra {extra}"), file
        )
    known = _table(tool, "setuptools", "dynamic")
    if "dependencies" in dynamic and "dependencies" in known:
        found.dependencies += _of_files(known["dependencies"], read)
        dynamic.discard("dependencies")
    if "optional-dependencies" in dynamic and "optional-dependencies" in known:
        for extra, said in _table(known, "optional-dependencies").items():
            found.extras[canonicalize_name(extra)] = _of_files(said, read)
        dynamic.discard("optional-dependencies")
    return dynamic & {"dependencies", "optional-dependencies"}


def _read_uv(found: ReadProject, tool: Mapping[str, Any], text: str, file: str) -> None:
    """Add what is said to ``uv``: where packages are, and which versions of them may be taken."""
    uv = _table(tool, "uv")
    found.places = {canonicalize_name(name): each for name, each in _table(uv, "sources").items()}
    found.members = _texts(_table(uv, "workspace").get("members", []), f"{file}: tool.uv.workspace")
    name = "constraint-dependencies"
    found.constraints += _lines(text, _texts(uv.get(name, []), f"{file}: tool.uv.{name}"), file)
    if uv.get("override-dependencies"):
        fact = "tool.uv.override-dependencies go against what packages say that they need"
        raise ValueError(f"{file}: {fact}, which is not done here; remove them")


def read_script(text: str, file: str) -> ReadProject:
    """Return the packages that a script names in a comment (PEP 723).

    Raises:
        ValueError: it names none, or cannot be read.
    """
    lines = text.splitlines()
    if SCRIPT not in lines:
        raise ValueError(f"has no line {SCRIPT}, behind which a script names its packages")
    first = lines.index(SCRIPT) + 1
    end = next((n for n in range(first, len(lines)) if not lines[n].startswith("#")), len(lines))
    if "# ///" not in lines[first:end]:
        raise ValueError(f"{SCRIPT} has no end, which is a line # ///")
    last = max(n for n in range(first, end) if lines[n] == "# ///")
    about, found = load_toml("\n".join(line[2:] for line in lines[first:last])), ReadProject()
    python = about.get("requires-python")
    found.python, found.python_file = python if isinstance(python, str) else None, file
    found.dependencies = _lines(text, _texts(about.get("dependencies", []), "dependencies"), file)
    _read_uv(found, _table(about, "tool"), text, file)
    return found


def _of_files(said: object, read: ReadFile) -> list[tuple[RequirementLine, str]]:
    """Return the requirements of the files that ``{file = [...]}`` names."""
    names = said.get("file") if isinstance(said, dict) else None
    found: list[tuple[RequirementLine, str]] = []
    for name in (
        [names] if isinstance(names, str) else _texts(names, "pyproject.toml: tool.setuptools.dynamic")
    ):
        text = read(name)
        if text is None:
            raise ValueError(f"{name}: cannot be read, and pyproject.toml takes its dependencies from it")
        found += [(line, name) for line in parse_lines(text)]
    return found


def _sources(tool: Mapping[str, Any]) -> Iterator[str]:
    """Yield the directories of the sources that a build backend is told."""
    setuptools = _table(tool, "setuptools")
    yield from _directories("pyproject.toml: package-dir", _table(setuptools, "package-dir"))
    where = _table(setuptools, "packages", "find").get("where", [])
    yield from map(str, where if isinstance(where, list) else [where])
    for said in (_table(tool, "hatch", "build"), _table(tool, "hatch", "build", "targets", "wheel")):
        for package in _texts(said.get("packages", []), "pyproject.toml: packages of hatch"):
            yield package.rpartition("/")[0] or "."
        where, sources = "pyproject.toml: sources of hatch", said.get("sources", [])
        if isinstance(sources, dict):
            sources = list(_directories(where, {name: path for path, name in sources.items()}))
        yield from _texts(sources, where)
    yield from (str(each) for each in [_table(tool, "pdm", "build").get("package-dir")] if each is not None)
    packages = _table(tool, "poetry").get("packages")
    for each in packages if isinstance(packages, list) else ():
        yield from [str(each["from"])] if isinstance(each, dict) and "from" in each else []
    root = _table(tool, "uv", "build-backend").get("module-root")
    yield from [str(root) or "."] if isinstance(root, str) else []


def _directories(where: str, directories: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the directories that a mapping from packages to their directories puts on the path.

    Raises:
        ValueError: a package has another name than its directory.
    """
    for name, path in directories.items():
        parts, inner = str(path).strip("/").split("/"), str(name).replace(".", "/").split("/")
        if name and parts[-len(inner) :] != inner:
            raise ValueError(f"{where} gives {str(name)[:60]} another name than its directory has")
        yield "/".join(parts[: -len(inner)] if name else parts) or "."


def _entry_points(project: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    groups = {
        "console_scripts": _table(project, "scripts") | _table(project, "gui-scripts"),
        **_table(project, "entry-points"),
    }
    for group, targets in groups.items():
        for name, target in _table(targets).items():
            yield _entry_point("pyproject.toml", group, name, target)


def _entry_point(file: str, group: str, name: object, target: object) -> tuple[str, str, str]:
    is_command = group == "console_scripts"
    matched = _TARGET.fullmatch(target) if isinstance(target, str) else None
    if matched is None or (is_command and matched[2] is None) or not isinstance(name, str):
        raise ValueError(f"{file}: {str(name)[:60]} = {str(target)[:60]}: is not module:function")
    if is_command and NAME.fullmatch(name) is None:
        raise ValueError(f"{file}: {name[:60]}: is not a name of a command")
    return group, name.strip(), f"{matched[1]}{(matched[2] or '').replace(' ', '')}"


# --- setup.cfg and setup.py


def _read_setup_cfg(found: ReadProject, text: str, read: ReadFile, wanted: set[str]) -> set[str]:
    """Add what ``setup.cfg`` says, and return which of the wanted fields it has."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError(f"setup.cfg: {str(error).partition(chr(10))[0]}") from error
    for section in filter(parser.has_section, ("metadata", "options")):
        for name, value in [*parser[section].items()]:  # setuptools takes dashes, too
            parser[section].setdefault(name.replace("-", "_"), value)
    if parser.has_option("options", "entry_points"):
        raise ValueError("setup.cfg: entry_points: list them in [options.entry_points]")
    found.name = found.name or parser.get("metadata", "name", fallback="")
    found.version = found.version or parser.get("metadata", "version", fallback="")
    if found.python is None and parser.has_option("options", "python_requires"):
        found.python, found.python_file = parser.get("options", "python_requires"), "setup.cfg"
    directories = dict(_pairs("setup.cfg", parser.get("options", "package_dir", fallback="")))
    found.sources += _directories("setup.cfg: package_dir", directories)
    found.sources += parser.get("options.packages.find", "where", fallback="").split()
    for group in parser["options.entry_points"] if parser.has_section("options.entry_points") else ():
        for name, target in _pairs("setup.cfg", parser["options.entry_points"][group]):
            found.entry_points.append(_entry_point("setup.cfg", group, name, target))
    said = set()
    if "dependencies" in wanted and parser.has_option("options", "install_requires"):
        found.dependencies += _of_cfg(parser["options"]["install_requires"], text, read)
        said.add("dependencies")
    if "optional-dependencies" in wanted and parser.has_section("options.extras_require"):
        for extra, value in parser["options.extras_require"].items():
            found.extras[canonicalize_name(extra)] = _of_cfg(value, text, read)
        said.add("optional-dependencies")
    return said


def _of_cfg(value: str, text: str, read: ReadFile) -> list[tuple[RequirementLine, str]]:
    if value.strip().startswith("file:"):
        names = [each.strip() for each in value.strip().removeprefix("file:").split(",")]
        return _of_files({"file": names}, read)
    return _lines(text, [line.text for line in parse_lines(value)], "setup.cfg")


def _sections(text: str) -> dict[str, list[str]]:
    """Return the entry points of a ``setup.py`` that are a text, as those of its tables."""
    found: dict[str, list[str]] = {}
    for line in map(str.strip, text.splitlines()):
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            found[line.strip("[]")] = []
        elif not found:
            raise ValueError(f"setup.py: entry_points: {line[:60]}: is in no [group]")
        else:
            next(reversed(found.values())).append(line)
    return found


def _pairs(file: str, text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            yield name.strip(), value.strip()
        elif line.strip():
            raise ValueError(f"{file}: {line.strip()[:60]}: is not name = value")


def _read_setup_py(found: ReadProject, text: str, wanted: set[str]) -> set[str]:
    """Add what stands in a ``setup.py`` as a literal, and return which of the wanted fields it has."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"setup.py: {error}") from error
    names = {
        target.id: node.value
        for node in tree.body if isinstance(node, ast.Assign)
        for target in node.targets if isinstance(target, ast.Name)
    }  # fmt: skip
    uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) == "setup")
    call = next(calls, None)
    given = {} if call is None else {each.arg: each.value for each in call.keywords}
    if None in given:
        raise ValueError("setup.py: its arguments are computed; write a pyproject.toml with [project]")

    plugins = ast.dump(given["setup_requires"]) if "setup_requires" in given else ""
    filled = [each for each in FILLING if each in given or f"'{each}" in plugins]
    if filled and "dependencies" in wanted:
        step = "list them in install_requires, or in a pyproject.toml with [project]"
        raise ValueError(f"setup.py: its dependencies are known only to {filled[0]}; {step}")

    def literal(name: str) -> Any:  # noqa: ANN401  what stands there
        node, alone = given.get(name), True
        if isinstance(node, ast.Name):  # other lines that name a list may change it
            alone = uses[node.id] == 2  # where it is set, and given
            node = names.get(node.id, node)
        try:
            value = None if node is None else ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError):
            return _COMPUTED
        return value if alone or isinstance(value, str) else _COMPUTED

    for field_name in ("name", "version"):
        value = literal(field_name)
        if isinstance(value, str) and not getattr(found, field_name):
            setattr(found, field_name, value)
    python, directories, points = literal("python_requires"), literal("package_dir"), literal("entry_points")
    if found.python is None and isinstance(python, str):
        found.python, found.python_file = python, "setup.py"
    found.sources += _directories("setup.py: package_dir", _table(directories))
    for group, said in (_sections(points) if isinstance(points, str) else _table(points)).items():
        lines = "\n".join(map(str, said)) if isinstance(said, list | tuple) else str(said)
        for name, target in _pairs("setup.py", lines):
            found.entry_points.append(_entry_point("setup.py", group, name, target))
    required, extras = literal("install_requires"), literal("extras_require")
    if _COMPUTED in (required, extras, points, directories):
        step = "list them there as texts, or in a pyproject.toml with [project]"
        raise ValueError(f"setup.py: its dependencies, commands or directories are computed; {step}")
    if "dependencies" in wanted and required is not None:
        found.dependencies += _lines(text, _required(required, "setup.py: install_requires"), "setup.py")
    if "optional-dependencies" in wanted:
        for extra, value in _table(extras).items():
            if ":" in str(extra):
                step = "write the marker behind each requirement"
                raise ValueError(f"setup.py: extras_require: {str(extra)[:60]}: {step}")
            wanted_of = _required(value, f"setup.py: {extra}")
            found.extras[canonicalize_name(str(extra))] = _lines(text, wanted_of, "setup.py")
    return wanted


def _required(value: object, where: str) -> list[str]:
    """Return the requirements of a list, or of the lines of a text."""
    if isinstance(value, str):
        return [line.text for line in parse_lines(value)]
    return _texts([*value] if isinstance(value, tuple | set) else value, where)


_COMPUTED: Final = object()


def _called(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))
