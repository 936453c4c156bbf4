"""Hints for commands that need a shell; the runner starts programs without one.

Without a shell, ``a | b`` passes the pipe to the program as an argument.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Final

from runner.base.textfile import one_line, quoted

SHELL_OPERATORS: Final = frozenset({"|", "||", "&&", ";", "<", ">", ">>"})
"""As a word of its own, each of these is almost certainly meant for a shell."""

SHELL: Final = ("bash", "-o", "pipefail", "-c")
"""A shell whose pipe fails if any program in it does."""

SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
INTERPRETERS: Final = {".py": "python", ".pl": "perl", ".R": "Rscript", ".jl": "julia", ".sh": "bash"}
OF_AN_INTERPRETER: Final = tuple(ending for ending in INTERPRETERS if ending != ".sh")
"""Endings of scripts that are no shell's."""

_COMMAND_OPTION: Final = re.compile(r"-[a-z]*c")
_PIPE: Final = re.compile(r"(?<![|>])\|(?!\|)")
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\\.")
_ARGUMENTS: Final = re.compile(r"\$\{?[@*1-9]")
_FOR_A_SHELL: Final = re.compile(r"[|><&;$`*]")


_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=\S*")
_STRICT: Final = re.compile(r"\bset\s+(?:-\S+\s+)*-[A-Za-df-z]*e|\berrexit\b|\btrap\b.*\bERR\b")
_SUBSTITUTION: Final = re.compile(r"\$\([^()]*\)|`[^`]*`")
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#.*")
_HERE_TEXT: Final = re.compile(r"<<-?\s*[\"']?([A-Za-z_][A-Za-z0-9_]*)")
_CONDITION: Final = re.compile(r"\s*(?:if|elif|while|until|!)\s")
_CASE: Final = re.compile(r"\s*[^()]*\)")
_SEPARATOR: Final = re.compile(r"(?<!;);(?!;)")
_ENDS: Final = frozenset({"fi", "esac", "else", "elif", "}", ";;"})
"""Words that end a command with the exit code of what is inside."""

_STARTERS: Final = frozenset(
    {"do", "then", "else", "exec", "time", "nohup", "env", "uv", "run", "nice", "srun"}
)
_TRAINERS: Final = re.compile(r"python[0-9.]*|torchrun|accelerate|deepspeed|jupyter|papermill|Rscript|julia")
"""Programs whose failure is that of the job."""


def interpreter_of(script: str) -> str:
    """Return the program that reads a script, by its ending."""
    return INTERPRETERS.get(f".{script.rpartition('.')[2]}", "bash")


def find_scripts(command: Iterable[str]) -> Iterator[str]:
    """Yield the scripts that a command gives to a shell, or that the kernel starts by their first line."""
    words = tuple(command)
    if _text_for_shell(words) is not None:
        return
    if words and "/" in words[0] and words[0].endswith(OF_AN_INTERPRETER):
        yield words[0]
    after_shell = False
    for word in words:
        is_option = word[:1] in "-+"
        if not is_option and (after_shell or word.endswith((".sh", ".bash"))):
            yield word
        after_shell = word.rpartition("/")[2] in SHELLS or (after_shell and is_option)


def find_script_warnings(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a script that cannot start, or at which a failure is lost, and what to write."""
    first, name = text.partition("\n")[0], shlex.quote(one_line(path))
    if first.endswith("\r"):
        yield 1, f"its lines end as on Windows (CR LF), so it will fail; write: sed -i 's/\\r$//' {name}"
        return
    if first.startswith("\ufeff"):
        step = f"sed -i '1s/^\\xEF\\xBB\\xBF//' {name}"
        yield 1, f"it begins with a byte order mark, so its #! line is none; write: {step}"
        return
    if path.endswith(OF_AN_INTERPRETER):
        if not first.startswith("#!"):
            yield 1, f"it has no #! line, so a shell would read it; write: {interpreter_of(path)} {name}"
        return
    for number, fact, option in _find_lost(text):
        yield number, f"{fact}; write set {option} above it"


def _find_lost(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the lines at which a shell loses a failure, each with its fact and the option that helps."""
    first, lines = text.partition("\n")[0], list(_commands(text))
    if "pipefail" not in text:
        piped = next((number for number, line in lines if _has_pipe(line)), None)
        if piped is not None:
            yield piped, "a failure before a '|' counts as a success", "-o pipefail"
    strict = _STRICT.search(text) or (first.startswith("#!") and re.search(r"\s-[a-z]*e", first))
    if strict:
        return
    for index, (number, line) in enumerate(lines[:-1]):
        if _starts_trainer(line) and lines[index + 1][1].split()[0] not in _ENDS:
            yield number, "a failure here is lost, as the script goes on", "-e"
            return


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Yield the commands of a script with their lines, without comments, quoted text and here-documents."""
    here, whole, begun = "", "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        if here:
            here = "" if raw.strip() == here else here
            continue
        begun, whole = (begun, whole + raw) if whole else (number, raw)
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        if match := _HERE_TEXT.search(whole):
            here = match[1]
        line = _COMMENT.sub("", _QUOTED.sub("''", whole)).strip()
        whole = ""
        yield from ((begun, each) for part in _SEPARATOR.split(line) if (each := part.strip()))


def _has_pipe(line: str) -> bool:
    """Return True if a line has a pipe whose failure would count."""
    while (shorter := _SUBSTITUTION.sub("", line)) != line:
        line = shorter
    return bool(_PIPE.search(line)) and not _CONDITION.match(line) and not _CASE.match(line)


def _starts_trainer(line: str) -> bool:
    """Return True if a line starts a program whose failure ends nothing."""
    if "||" in line or line.endswith("&") or _CONDITION.match(line):
        return False
    words = [word for word in line.rpartition("&&")[2].split() if not _ASSIGNMENT.fullmatch(word)]
    first = next((word for word in words if word not in _STARTERS and word[:1] != "-"), "")
    return words[:1] != ["exec"] and bool(_TRAINERS.fullmatch(first.rpartition("/")[2]))


def suggest_list(text: str, *, command: bool) -> str:
    """Return a text as the list that the field needs; a command that needs a shell gets one."""
    words = [*SHELL, text] if command and _FOR_A_SHELL.search(text) else text.split()
    return f"[{', '.join(map(quoted, words))}]"


def find_shell_warnings(command: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each word of a command that only a shell understands."""
    words = tuple(command)
    for number, word in enumerate(words):
        if word in SHELL_OPERATORS:
            begun = quoted(f"{one_line(' '.join(words[:number])[:40])} ...".lstrip())
            yield (
                f"workload.command[{number}]: '{word}' is passed to the program as it is; "
                f"for a shell write [{', '.join(map(quoted, SHELL))}, {begun}]"
            )
    yield from _find_lost_failures(words)


def find_dropped_arguments(command: Iterable[str]) -> str | None:
    """Return the reason why words that are put behind a command reach no program, None if they do.

    Behind the text of ``sh -c`` the first word is ``$0``, and the text sees the others as ``"$@"`` alone.
    """
    words = tuple(command)
    text = _text_for_shell(words)
    if text is None or (_ARGUMENTS.search(text) and words[-1] != text):
        return None
    wanted = text if _ARGUMENTS.search(text) else f'{text} "$@"'
    begun = [*words[: words.index(text)], wanted, "run"]
    return f"the shell drops the words behind its text; write [{', '.join(map(quoted, begun))}]"


def _text_for_shell(words: tuple[str, ...]) -> str | None:
    """Return the text that a command gives to a shell, None if it gives it none."""
    for number, word in enumerate(words[:-1]):
        name, options = word.rpartition("/")[2], [each for each in words[number + 1 :] if each[:1] in "-+"]
        if name in SHELLS and any(_COMMAND_OPTION.fullmatch(each) for each in options):
            rest = words[number + 1 :]
            return next((each for each in rest if each[:1] not in "-+" and each != "pipefail"), None)
    return None


def _find_lost_failures(words: tuple[str, ...]) -> Iterator[str]:
    """Yield a warning for each failure that the text for a shell loses."""
    text = _text_for_shell(words)
    if text is None:
        return
    options = " ".join(each for each in words[: words.index(text)] if each[:1] == "-" or each == "pipefail")
    for _, fact, option in _find_lost(f"set {options}\n{text}"):
        wanted = [SHELL[0], *option.split(), "-c"]
        yield (
            f"workload.command[{words.index(text)}]: {fact}; "
            f"write [{', '.join(map(quoted, wanted))}, {quoted(one_line(text)[:60])}]"
        )
