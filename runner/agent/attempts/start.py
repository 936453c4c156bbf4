"""The reason why a program did not start (exit codes 126 and 127), with the line that works."""

import re
import shlex
from collections.abc import Callable, Collection, Sequence
from posixpath import normpath
from typing import Final

from runner.agent.attempts.diagnosis import LAST_LINES
from runner.base.textfile import one_line
from runner.files.scripts import SCRIPTS, describe_absent, describe_bare, describe_not_executable
from runner.files.shell import SHELLS, interpreter_of

_CARRIAGE_RETURN: Final = re.compile(
    rb"\\r['\"\xe2]?[^\n]{0,4}: |\^M|\r['\"]?: |bad interpreter: [^\n]{0,100}\r"
)
"""Messages of a shell, ``env`` and the kernel about a script whose lines end with CR LF."""

_NO_SHELL: Final = re.compile(rb"exec /bin/sh failed: ")
"""Message of the init of a container about an image without a shell."""

_NO_LIBRARY: Final = re.compile(rb"(\S{1,200}): error while loading shared libraries: ([^\s:]{1,200}): ")
"""Words of the loader of programs."""

_NO_COMMAND: Final = re.compile(
    rb"(?m)^[^\n]{0,200}?: (?:exec: )?([A-Za-z0-9_.+=-]{1,200}): "
    rb"(?:(?:command )?not found|Permission denied)\s*$"
)
"""A command that was looked for on the PATH; in a directory of it that is closed, permission is denied."""

_NO_INTERPRETER: Final = re.compile(
    rb"(?<!\w)env: \W{0,4}([A-Za-z0-9_.+-]{1,60})\W{0,4}: |: ([^\s:]{1,200}): bad interpreter"
)
_NO_FILE: Final = re.compile(
    rb"(?m)([^\s:]{1,200}): (?:No such file or directory|Can't open)|[Cc](?:annot|an't) open ([^\s:]{1,200})"
)
_NOT_EXECUTABLE: Final = re.compile(
    rb"(?m)(?:^|[\s:])((?!/)[^\s:]{0,200}/[^\s:]{1,200}): Permission denied\s*$"
)
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_BUILTINS: Final = frozenset(
    (".", "cd", "export", "exec", "set", "source", "trap", "ulimit", "umask", "unset")
)
_DEBIAN: Final = {
    **{
        name: name
        for name in ("bc", "cmake", "curl", "ffmpeg", "git", "jq", "make", "perl", "rsync", "unzip", "wget")
    },
    **dict.fromkeys(("gcc", "g++", "cc"), "build-essential"),
    "ninja": "ninja-build",
    "Rscript": "r-base-core",
    "R": "r-base-core",
    "node": "nodejs",
    "java": "default-jre-headless",
    "mpirun": "openmpi-bin",
    "mpiexec": "openmpi-bin",
    "time": "time",
}
"""Debian packages of commands."""

_PYTHON: Final = {
    **{name: name for name in ("accelerate", "deepspeed", "dvc", "ipython", "mlflow", "optuna", "papermill")},
    **{name: name for name in ("pytest", "ray", "tensorboard", "wandb", "jupyter")},
    "huggingface-cli": "huggingface_hub",
    "hf": "huggingface_hub",
    "transformers-cli": "transformers",
}
"""Python packages of commands."""

_OTHER_PYTHON: Final = re.compile(r"python(\d\.\d+)")
_OPERATORS: Final = frozenset(("&&", "||", "|", ";", "&", "<", ">", ">>", "2>&1", "2>"))
_NEEDLESS: Final = {
    **dict.fromkeys(("pip", "pip3"), "packages are asked for before: runner run --with PACKAGE"),
    **dict.fromkeys(
        ("conda", "mamba", "micromamba", "poetry", "pipenv", "pdm", "uv", "uvx", "hatch", "rye", "pixi"),
        "the job has the packages of its image; write the command without it, and name them with --with",
    ),
    **dict.fromkeys(("sbatch", "srun", "qsub"), "this job is in a queue already; write the program itself"),
    **dict.fromkeys(("docker", "podman"), "a job is a container itself; --image names another image"),
    **dict.fromkeys(("module", "ml"), "the image has what it loads, such as CUDA; write the line without it"),
    "sudo": "jobs have no rights of root; runner run --system PACKAGE installs what is Debian's",
    "nvidia-smi": "a job has it if it asks for a GPU: runner run --gpus 1",
}
"""Commands that no job needs, and what takes their place."""


def explain_start(
    command: Sequence[str], log: bytes, paths_in_code: Callable[[], Collection[str]], *, in_container: bool
) -> str:
    """Return the reason why a program does not start, and the line that works; empty if that is not known."""
    last = b"\n".join(log.splitlines()[-LAST_LINES:])
    if _NO_SHELL.search(last):
        other = b"format error" in last
        why = "is of another architecture" if other else "has no /bin/sh that can be run"
        return f"the image {why}; every job is started with its /bin/sh"
    if match := _NO_LIBRARY.search(last):
        program, library = (one_line(each.decode(errors="replace")) for each in match.groups())
        place = "in the image" if in_container else "on this machine"
        return f"{program} is there; its library {library} is not {place}, or cannot be read"
    return (
        _of_the_line(command, last, paths_in_code)
        or _of_a_script(command, last, paths_in_code)
        or _of_a_command(last, in_container=in_container)
    )


def _of_the_line(command: Sequence[str], last: bytes, paths_in_code: Callable[[], Collection[str]]) -> str:
    """Return the mistake in the words of a command."""
    word = command[0] if command else ""
    if len(command) == 1 and len(word.split()) > 1:
        return f"the command is one word; write it without quotes: {' '.join(word.split())}"
    if _ASSIGNMENT.fullmatch(word):
        return f"a variable is an option: runner run --env {shlex.quote(word)} -- {shlex.join(command[1:])}"
    if word in _BUILTINS:
        text = " ".join(each if each in _OPERATORS else shlex.quote(each) for each in command)
        return f"{word} is a word of shells: runner run -- bash -c {shlex.quote(text)}"
    if word == "sudo":
        return f"jobs have no rights of root; write it without sudo: {shlex.join(command[1:])}"
    if "/" not in word and word.endswith(SCRIPTS) and not _CARRIAGE_RETURN.search(last):
        if missing := _not_there(word, paths_in_code()):
            return missing
        return describe_bare(word)
    return ""


def _of_a_script(command: Sequence[str], last: bytes, paths_in_code: Callable[[], Collection[str]]) -> str:
    """Return the reason why a script of the code does not start."""
    word = command[0] if command else ""
    name, reader = shlex.quote(word), interpreter_of(word)
    if _CARRIAGE_RETURN.search(last):
        script = next((each for each in command if each.endswith(SCRIPTS)), "the script")
        return f"{script} has the line ends of Windows; write: sed -i 's/\\r$//' {shlex.quote(script)}"
    if match := _NO_INTERPRETER.search(last):
        wanted = (match[1] or match[2]).decode(errors="replace")
        return (
            f"the first line of the script names {wanted}, which is not there; {reader} {name} reads it, too"
        )
    if word.rpartition("/")[2] in SHELLS and (match := _NO_FILE.search(last)):
        return _not_there((match[2] or match[1]).decode(errors="replace"), paths_in_code())
    if match := _NOT_EXECUTABLE.search(last):
        return describe_not_executable(match[1].decode(errors="replace"))
    if "/" not in word or word.startswith("/"):
        return ""
    paths = paths_in_code()
    if normpath(word) in paths and b"not found" in last:
        fact = f"the program that the first line of {word} names is not there, or the line ends as on Windows"
        return f"{fact} (sed -i 's/\\r$//' {name}); {reader} {name} does without it"
    return _not_there(word, paths)


def _not_there(name: str, paths: Collection[str]) -> str:
    """Return that a script is not in the code, and one whose name is similar."""
    return "" if normpath(name) in paths or not paths else describe_absent(name, paths)


def _of_a_command(last: bytes, *, in_container: bool) -> str:
    """Return that a command is not on the PATH, and the way to have it."""
    missing = [found.decode() for found in _NO_COMMAND.findall(last)]
    tool = missing[-1] if missing else ""
    if not tool or tool.endswith(SCRIPTS):
        return ""
    if not in_container:
        closed = b": Permission denied" in last
        there = f"; a {tool} on the PATH is out of this user's reach, as all below /root is" if closed else ""
        return f"{tool} is not on the PATH of this machine for the user of the job{there}"
    ways = describe_command(tool)
    return (
        ways or f"{tool} is not in the image; its package is one of Python (--with) or of Debian (--system)"
    )


def describe_command(tool: str) -> str:
    """Return the way to a command that the image does not have; empty if that is not known."""
    if (instead := _NEEDLESS.get(tool)) is not None:
        return f"{tool} is not in the image; {instead}"
    if (version := _OTHER_PYTHON.fullmatch(tool)) is not None:
        return (
            f'{tool} is not in the image; write python, and image: {{python: "{version[1]}"}} in the job file'
        )
    if (package := _PYTHON.get(tool)) is not None:
        return f"{tool} is not in the image; runner run --with {package}, or image.requirements, installs it"
    if (package := _DEBIAN.get(tool)) is not None:
        ways = f"runner run --system {package}, or image.system: [{package}], installs it"
        return f"{tool} is not in the image; {ways}"
    return ""
