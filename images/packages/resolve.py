"""Resolves requirements into a lock, with ``uv pip compile`` and without executing anything of a package.

A release without a wheel counts like any other.  If its needs are not declared, the resolution ends with its
name, and goes on when it was built elsewhere.  So the newest release that fits wins, as with pip.
The packages of the image are offered as wheels of metadata alone.  Those of torch's family are the only
choice, so that no build for another accelerator is ever downloaded; the others are preferred where they fit.
A local part of their version tells them from the packages of the index.
"""

import json
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from images.cancellation import CancellationToken
from images.errors import BuildFailed
from images.lock_files import PYTORCH_INDEX
from images.packages.answer import ANSWER, FoundPackage, ReadAnswer, read_answer
from images.packages.lock import Lock, Package, Wheel
from images.packages.program import answering_python, find_uv, index_arguments, run, uv_environment
from images.packages.scratch import Scratch, own_directory, scratch
from images.packages.values import (
    COMPANIONS,
    COMPILED,
    FAMILY,
    Account,
    Built,
    Indexes,
    Installed,
    Limits,
    PythonFacts,
    Requirements,
    Source,
)

PROJECT: Final = "the-job-file"
"""The name of the project that requirements are written as, where torch has an index of its own."""

LOCAL: Final = "image"
"""The local part of the version of a package that the image holds."""

THE_IMAGE_HAS: Final = "the image has "
"""Words of a reason for what comes from the image."""

_MANYLINUX: Final = (40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 28, 17)
"""Minor versions of glibc 2 for which ``uv`` has a platform."""

_UNBUILT: Final = re.compile(
    r"^error: Failed to (?:download and )?build"
    r" `([A-Za-z0-9][A-Za-z0-9._-]{0,199})==([A-Za-z0-9.!+_-]{1,100})`",
    re.MULTILINE,
)

_INCLUDED: Final = re.compile(r"^hint: `[^`]+` \(v[^)]*\) was included because `([^`]+)`", re.MULTILINE)

_UNSATISFIABLE: Final = 1
"""The exit code of ``uv`` for requirements without a solution; other failures have 2."""


class Unresolvable(BuildFailed):
    """The requirements have no solution; the text is the reason in one line."""

    def __init__(
        self, reason: str, details: str, *, unbuilt: tuple[str, str] | None = None, needed: str = ""
    ) -> None:
        super().__init__(reason)
        self.details = details
        self.unbuilt = unbuilt  # name and version of a package that has to be built
        self.needed = needed  # words for the requirement that needs that


class IndexUnavailable(BuildFailed):
    """The index of packages does not answer."""


def read_here(_account: Account | None, directory: int) -> tuple[FoundPackage, ...]:
    """Read an answer with the rights of this process, where they are the account's."""
    return read_answer(directory)


@dataclass(frozen=True, slots=True)
class Resolver:
    """Resolves requirements on this host."""

    cache_dir: Path
    """Has a directory for each account below it."""
    indexes: Indexes
    limits: Limits = field(default_factory=Limits)
    trusted: Account | None = None
    """User who resolves if the indexes have credentials: users can read those of their own processes."""
    read: ReadAnswer = read_here

    def resolve(
        self,
        wanted: Requirements,
        facts: PythonFacts,
        account: Account | None,
        token: CancellationToken,
        built: tuple[Built, ...] = (),
    ) -> Lock:
        """Return the lock of requirements for the Python of an image; ``built`` are wheels beside the index.

        Raises:
            Unresolvable: they have no solution, or a package has to be built.
            IndexUnavailable: the index does not answer.
            BuildFailed: the resolver cannot be started, or takes too long.
            BuildCancelled: ``token`` was cancelled.
        """
        if not wanted.lines:
            return Lock(facts.python, facts.machine, ())
        asked = _Question(self, facts, account, token, built)
        try:
            return asked.resolve(wanted)
        except Unresolvable as error:
            if wanted.own_family or error.unbuilt is not None or THE_IMAGE_HAS not in str(error):
                raise
            try:  # what needs another torch gets one of its own, as if a requirement had named it
                return asked.resolve(replace(wanted, own_family=frozenset({"torch"})))
            except Unresolvable as again:
                raise (error if again.unbuilt is None else again) from again

    def who_asks(self, account: Account | None) -> Account | None:
        """Return the user with whose rights the indexes are asked for an account."""
        return account if account is None or self.indexes.netrc is None else self.trusted

    def find_source(
        self,
        package: tuple[str, str],
        wanted: Requirements,
        facts: PythonFacts,
        account: Account | None,
        token: CancellationToken,
    ) -> Source:
        """Return the source distribution of a package and version; the others are those of the index.

        Raises:
            Unresolvable: there is none.
        """
        name, version = package
        alone = replace(wanted, lines=(f"{name}=={version}",), constraints=())
        options = ["--config-file=sources.toml", "--no-build-isolation", "--no-deps", f"--no-binary={name}"]
        found = _Question(self, facts, account, token).compile(alone, options, name)
        return _source(next(each for each in found if each.name == _normal(name)))


@dataclass(frozen=True, slots=True)
class _Question:
    """One question to the resolver: for which Python, with whose rights, and until when."""

    resolver: Resolver
    facts: PythonFacts
    account: Account | None
    token: CancellationToken
    built: tuple[Built, ...] = ()

    def resolve(self, wanted: Requirements) -> Lock:
        indexes, facts = self.resolver.indexes, self.facts
        options = ["--no-config", "--no-build-isolation"]
        found, wanted = self._compile_family(wanted, options)
        while more := _unasked_family(found, wanted, facts) if torch_index(indexes, wanted, facts) else ():
            wanted = replace(wanted, lines=(*wanted.lines, *more))  # which takes them from that index, too
            found, wanted = self._compile_family(wanted, options)
        if torch_index(indexes, wanted, facts) is None:
            _check_builds(found, wanted, facts)
        return _read_lock(found, wanted, facts, self.built)

    def _compile_family(
        self, wanted: Requirements, options: list[str]
    ) -> tuple[tuple[FoundPackage, ...], Requirements]:
        """Return what the resolver finds, and the requirements with what the index of torch does not have."""
        try:
            return self.compile(wanted, options), wanted
        except Unresolvable as error:
            said = f"{error} "
            absent = frozenset(name for name in COMPANIONS if f"{name} was not found in the p" in said)
            if not absent - wanted.elsewhere:
                raise
        return self._compile_family(replace(wanted, elsewhere=wanted.elsewhere | absent), options)

    def compile(
        self, wanted: Requirements, options: list[str], declared: str | None = None
    ) -> tuple[FoundPackage, ...]:
        """Return what the resolver finds; ``declared`` is a package that counts as needing nothing."""
        resolver, facts = self.resolver, self.facts
        account = resolver.who_asks(self.account)
        indexes, cache_dir = resolver.indexes, resolver.cache_dir
        home = own_directory(cache_dir / "uv", account)
        with scratch(cache_dir / "resolving", "resolve-", account) as work:
            _write_inputs(work, wanted, facts, self.built)
            index = torch_index(indexes, wanted, facts) if _names(wanted) & _family(wanted, facts) else None
            source = work.path / ("requirements.txt" if index is None else "pyproject.toml")
            if index is not None:
                work.write("pyproject.toml", _project(wanted, index, _family(wanted, facts)))
            static = f'[[dependency-metadata]]\nname = "{declared}"\nrequires-dist = []\n' if declared else ""
            work.write("sources.toml", static)
            paths = self._arguments(work.path, home)
            paths.append(f"--python={answering_python(work, account)}")
            environment = uv_environment(home, indexes, work)
            argv = [find_uv(), "pip", "compile", *options, *paths, str(source)]
            outcome = run(argv, work.path, environment, account, resolver.limits, self.token)
            if outcome.exit_code != 0:
                raise _failure(outcome.exit_code, outcome.output, facts)
            with work.opened("out") as out:
                return resolver.read(account, out)

    def _arguments(self, work: Path, home: Path) -> list[str]:
        return [
            *["--quiet", "--color=never", f"--cache-dir={home / 'cache'}"],
            *["--no-python-downloads", "--generate-hashes", "--format=pylock.toml"],
            *[f"--python-version={self.facts.full_python}", f"--python-platform={platform(self.facts)}"],
            *index_arguments(self.resolver.indexes),
            *[f"--find-links={work / 'held'}", f"--constraints={work / 'constraints.txt'}"],
            f"--output-file={work / 'out' / ANSWER}",
        ]


def platform(facts: PythonFacts) -> str:
    """Return the name that ``uv`` has for a machine and its C library."""
    minor = facts.glibc[1] if facts.glibc[0] == 2 else _MANYLINUX[0]
    fitting = next((each for each in _MANYLINUX if each <= minor), _MANYLINUX[-1])
    return f"{facts.machine}-manylinux_2_{fitting}"


# --- what the resolver is given


def torch_index(indexes: Indexes, wanted: Requirements, facts: PythonFacts) -> str | None:
    """Return the index that has the family of the image's torch, None if it is that of all packages."""
    if wanted.accelerator in indexes.torch:
        return indexes.torch[wanted.accelerator]
    build = _build_of(facts)
    return f"{PYTORCH_INDEX}/{build}" if build and indexes.index_url is None and not indexes.offline else None


def _build_of(facts: PythonFacts) -> str:
    """Return the local part of the version of the image's torch, such as ``cu126``."""
    return facts.versions.get("torch", "").partition("+")[2]


def _family(wanted: Requirements, facts: PythonFacts) -> frozenset[str]:
    """Return the packages of torch's family that do not come from the image."""
    every = frozenset((*FAMILY, *COMPANIONS)) - wanted.elsewhere
    if wanted.own_family:
        return every
    return every - facts.versions.keys() if "torch" in facts.versions else frozenset()


def _project(wanted: Requirements, index: str, family: Iterable[str]) -> str:
    """Return requirements as a project, which can say that torch and its family come from one index."""
    lines = ", ".join(map(json.dumps, wanted.lines))
    sources = "".join(f'{name} = {{ index = "family" }}\n' for name in sorted(family))
    return (
        f'[project]\nname = "{PROJECT}"\nversion = "0"\nrequires-python = ">=3"\ndependencies = [{lines}]\n'
        f"[tool.uv.sources]\n{sources}"
        f'[[tool.uv.index]]\nname = "family"\nurl = {json.dumps(index)}\nexplicit = true\n'
    )


def _names(wanted: Requirements) -> frozenset[str]:
    """Return the packages that requirements name."""
    return frozenset(_normal(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]) for line in wanted.lines)


def _unasked_family(
    found: Iterable[FoundPackage], wanted: Requirements, facts: PythonFacts
) -> tuple[str, ...]:
    """Return the packages of torch's family that are not the image's, and that no requirement names."""
    missing = _family(wanted, facts) - _names(wanted)
    return tuple(each.name for each in found if each.name in missing)


def _check_builds(found: Iterable[FoundPackage], wanted: Requirements, facts: PythonFacts) -> None:
    """Check that what was compiled against torch is of the build that the image's torch is.

    Raises:
        Unresolvable: it is of another one, and would fail when it is imported.
    """
    build = _build_of(facts)
    for each in () if wanted.own_family else found:
        is_other = each.version.partition("+")[2] != build and each.name in _family(wanted, facts)
        if is_other and each.name in COMPILED:
            fact = f"{each.name} {each.version} of the index is not of the build of the image's torch"
            # On CPUs any build runs: the job gets a torch of its own. On GPUs it could need another driver.
            held = f"{THE_IMAGE_HAS}{facts.versions['torch']}" if build == "cpu" else facts.versions["torch"]
            step = "the operator names an index that has it (torch_indexes)"
            raise Unresolvable(f"{fact} ({held}); {step}", "")


def _write_inputs(
    work: Scratch, wanted: Requirements, facts: PythonFacts, built: Iterable[Built] = ()
) -> None:
    work.write("requirements.txt", "".join(f"{line}\n" for line in wanted.lines))
    held = () if wanted.own_family else facts.installed
    fixed = [f"{each.name}=={_version(each)}" for each in held if each.name in FAMILY]
    work.write("constraints.txt", "".join(f"{line}\n" for line in (*wanted.constraints, *fixed)))
    out, offered = work.directory("out"), work.directory("held")
    if held:
        (out / ANSWER).write_text("".join(_preferences(held, facts)))
    for package in held:
        _write_stub(offered, package)
    for made in built:
        shutil.copyfile(made.wheel, offered / made.wheel.name)
    work.give("held")
    work.give("out")


def _version(package: Installed) -> str:
    """Return the version under which a package of the image is offered."""
    return package.version if "+" in package.version else f"{package.version}+{LOCAL}"


def _preferences(held: Iterable[Installed], facts: PythonFacts) -> Iterator[str]:
    """Yield a lock of what the image holds: the resolver keeps the versions of a lock that fit."""
    yield f'lock-version = "1.0"\ncreated-by = "runner"\nrequires-python = ">={facts.python}"\n'
    for each in held:
        yield f'[[packages]]\nname = "{each.name}"\nversion = "{_version(each)}"\n'


def _write_stub(directory: Path, package: Installed) -> None:
    """Write a wheel that has the metadata of a package, and nothing else."""
    stem = f"{package.name.replace('-', '_')}-{_version(package)}"
    needs = "".join(f"Requires-Dist: {each}\n" for each in package.requires)
    tags = "Wheel-Version: 1.0\nGenerator: runner\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    about = f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {_version(package)}\n{needs}"
    with zipfile.ZipFile(directory / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", about)
        wheel.writestr(f"{stem}.dist-info/WHEEL", tags)
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


# --- what the resolver answers


def _read_lock(
    found: Iterable[FoundPackage], wanted: Requirements, facts: PythonFacts, built: tuple[Built, ...] = ()
) -> Lock:
    made = {each.wheel.name: each for each in built}
    sources = {}
    held = {} if wanted.own_family else {each.name: each for each in facts.installed}
    base, packages = {}, []
    for each in found:
        name, version = each.name, each.version
        if name in held and version == _version(held[name]):
            base[name] = held[name].version
        else:
            if each.wheel is None and each.source is not None:  # it declares what it needs, and is not built
                raise _has_no_wheel(name, version, "")
            wheel = _wheel(each)
            if wheel.name in made:
                wheel = replace(wheel, url=made[wheel.name].wheel.as_uri())
                sources[name] = f"{made[wheel.name].source.url}#sha256={made[wheel.name].source.sha256}"
            packages.append(Package(name, version, wheel))
    isolated = bool(wanted.own_family)
    return Lock(facts.python, facts.machine, tuple(packages), base, sources, isolated=isolated)


def _source(package: FoundPackage) -> Source:
    found = package.source
    if found is None or found.sha256 is None:
        fact = f"{package.name}: has no wheel, and no source distribution with a sha256"
        raise Unresolvable(fact, "")
    return Source(package.name, package.version, found.name, found.url, found.sha256, found.size)


def _wheel(package: FoundPackage) -> Wheel:
    found = package.wheel
    if found is None or found.sha256 is None:
        raise BuildFailed(f"{package.name}: the index has no sha256 of its wheel")
    return Wheel(found.name, found.url, found.sha256, found.size)


def _failure(exit_code: int, output: str, facts: PythonFacts) -> BuildFailed:
    """Return the error that the output of a failed resolution means."""
    if (unbuilt := _UNBUILT.search(output)) is not None:
        above = _INCLUDED.search(output)
        needed = "" if above is None else f", which {above[1]} needs"
        return _has_no_wheel(unbuilt[1], unbuilt[2], output.strip(), needed)
    reason = _reason(output, facts)
    if exit_code == _UNSATISFIABLE and "No solution found" in output:
        return Unresolvable(reason, output.strip())
    if "Failed to fetch" in output or "error sending request" in output:
        return IndexUnavailable(reason)
    return Unresolvable(reason, output.strip())


def _has_no_wheel(name: str, version: str, details: str, needed: str = "") -> Unresolvable:
    fact = f"{name} {version}{needed and f'{needed},'} has no wheel that fits"
    return Unresolvable(fact, details, unbuilt=(name, version), needed=needed)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _reason(output: str, facts: PythonFacts) -> str:
    """Return the reason of a failure in one line, in the words of somebody who wrote the requirements."""
    text = re.split(r"\n\s*\n|\nhint:", output.strip(), maxsplit=1)[0]
    text = " ".join(part.strip() for part in re.split(r"\n\s*cause:", text)[1:] or [text])
    text = " ".join(text.replace("error:", "").split())
    for each in facts.installed:
        if each.name in FAMILY:  # the constraint that the image makes
            fixed = re.escape(f"{each.name}=={_version(each)}")
            text = re.sub(rf"(?<![\w-])(?:you require )?({fixed})", rf"{THE_IMAGE_HAS}\1", text)
    text = text.replace(f"+{LOCAL}", "").replace(f"{PROJECT} depends on ", "you require ")
    text = re.sub(r",? (?:and )?we can conclude that your requirements are unsatisfiable\.?$", "", text)
    return text.removeprefix("Because ")
