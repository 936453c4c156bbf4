"""Report of git about a code directory, asked with the rights of the current process.

A repository can name programs that git runs: hooks, a file system monitor, filters of file contents.  None of
them is run: they are switched off by name, nothing is fetched, and no configuration but that of the
repository is read, except to find the user's own ignore file.  git itself refuses a repository that belongs
to another user.  Without git, or without an answer in time, nothing is known.
"""

import os
import pwd
import stat
import subprocess
from collections.abc import Mapping
from typing import Any, Final

ANSWER_S: Final = 3.0
"""Longest wait for git; a repository on a slow file system is then one of which nothing is known."""

_ENVIRONMENT: Final = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LC_ALL": "C",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_OPTIONAL_LOCKS": "0",  # the index of the user stays as it is
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ATTR_NOSYSTEM": "1",
}
_OF_NOBODY: Final = frozenset({"GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_GLOBAL"})
"""Variables without which git reads the configuration of the user and of the host."""

_COMMAND: Final = (
    "git",
    "-c", "core.fsmonitor=false",
    "-c", "core.hooksPath=/dev/null",
    "-c", "core.sshCommand=false",
    "-c", "protocol.allow=never",
    "-c", "core.packedGitWindowSize=32m",  # the address space of this process has a limit
    "-c", "core.packedGitLimit=256m",
)  # fmt: skip
_STAMPED: Final = ("HEAD", "index", "config", "packed-refs")


class GitSilentError(Exception):
    """git is not there, refuses, or does not answer."""


def find_repository() -> str | None:
    """Return the directory that has the repository of the current one, None if there is none."""
    place = os.getcwd()
    while not os.path.lexists(os.path.join(place, ".git")):
        parent = os.path.dirname(place)
        if parent == place:
            return None
        place = parent
    return place


def stamp(repository: str) -> list[Any] | None:
    """Return values that change when the answer of git does while no file does; None if that is unknown."""
    if repository != os.getcwd():
        return None
    directory = f"{repository}/.git"
    try:
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            return None
        with open(f"{directory}/HEAD", "rb") as file:
            head = os.fsdecode(file.read(4096)).strip()
    except OSError:
        return None
    names = [*_STAMPED, head.removeprefix("ref: ")] if head.startswith("ref: refs/") else [*_STAMPED]
    return [_key(f"{directory}/{name}") for name in names]


def _key(path: str) -> list[int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def ask_state() -> dict[str, Any]:
    """Return commit, branch, remote and dirty, as ``core.ports.code.GitState`` has them.

    Raises:
        GitSilentError: git does not say.
    """
    options = ("--porcelain=v2", "--branch", "--untracked-files=normal", "--ignore-submodules=dirty", "-z")
    lines = _ask("status", *options).split("\0")
    heads = dict(
        line.removeprefix("# branch.").split(" ", 1) for line in lines if line.startswith("# branch.")
    )
    commit, branch = heads.get("oid"), heads.get("head")
    upstream = heads.get("upstream", "").partition("/")[0]
    return {
        "commit": None if commit == "(initial)" else commit,
        "branch": None if branch == "(detached)" else branch,
        "remote": upstream or next(iter(_ask("remote").split()), None),
        "dirty": any(line and not line.startswith("# ") for line in lines)
        or any(map(_is_dirty, _submodules())),
    }


def _submodules() -> list[str]:
    """Return the directories of the submodules; git must not look into them with their own settings."""
    place = find_repository() or "."
    try:
        found = _run("config", f"--file={place}/.gitmodules", "-z", "--get-regexp", r"^submodule\..*\.path$")
    except GitSilentError:  # there are none
        return []
    return [os.path.join(place, each.partition("\n")[2]) for each in found.split("\0") if each]


def _is_dirty(submodule: str) -> bool:
    options = ("--porcelain", "--untracked-files=normal", "--ignore-submodules=dirty", "-z")
    try:
        return _run("-C", submodule, *_without_filters(submodule), "status", *options) != ""
    except GitSilentError:  # it was never fetched
        return False


def ask_tracked(directory: str = ".") -> frozenset[str]:
    """Return the paths below a directory that git has in its index; nothing if git does not say."""
    try:
        return frozenset(_run("-C", directory, "ls-files", "-z").split("\0"))
    except GitSilentError:
        return frozenset()


def find_git_files(place: str) -> tuple[str, str] | None:
    """Return the paths of a repository's own ignore file and of its index; None if git does not say.

    Those of a worktree and of a submodule are elsewhere, and their ``.git`` is a file.
    """
    if os.path.isdir(f"{place}/.git"):
        return f"{place}/.git/info/exclude", f"{place}/.git/index"
    try:
        found = _run("-C", place, "rev-parse", "--git-path", "info/exclude", "--git-path", "index")
    except GitSilentError:
        return None
    exclude, _, index = found.removesuffix("\n").partition("\n")
    return os.path.join(place, exclude), os.path.join(place, index)


def find_user_excludes() -> str | None:
    """Return the path of the ignore file that the user has for all repositories (core.excludesFile)."""
    if (home := find_home()) is None:
        return None
    environment = {name: value for name, value in _ENVIRONMENT.items() if name not in _OF_NOBODY}
    try:
        named = _run("config", "--type=path", "--get", "core.excludesFile", env={**environment, "HOME": home})
    except GitSilentError:  # it is not set
        named = f"{home}/.config/git/ignore"
    return os.path.realpath(named.removesuffix("\n"))  # which git follows, too


def find_home() -> str | None:
    """Return the home directory of the current user; None: an account without an entry."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return None


def _ask(*arguments: str) -> str:
    return _run(*_without_filters(), *arguments)


def _without_filters(place: str = ".") -> tuple[str, ...]:
    """Return options that switch every filter of a repository off."""
    try:
        named = _run(
            "-C", place, "config", "--name-only", "-z", "--get-regexp", r"^filter\..*\.(clean|process)$"
        )
    except GitSilentError:  # 1: there is none
        return ()
    names = [name for name in named.split("\0") if name]
    drivers = dict.fromkeys(name.rpartition(".")[0] for name in names)
    options = [f"{name}=" for name in names] + [f"{driver}.required=false" for driver in drivers]
    return tuple(part for option in options for part in ("-c", option))


def _run(*arguments: str, env: Mapping[str, str] = _ENVIRONMENT) -> str:
    try:
        done = subprocess.run(
            [*_COMMAND, *arguments],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise GitSilentError from error
    return os.fsdecode(done.stdout)
