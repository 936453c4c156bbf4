"""Hints for commands that need a shell; the runner starts programs without one.

Without a shell, ``a | b`` passes the pipe to the program as an argument.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from runner.base.textfile import one_line, quoted

SHELL_OPERATORS: Final = frozenset({"|", "||", "&&", ";", "<", ">", ">>"})
"""As a word of its own, each of these is almost certainly meant for a shell."""

SHELL: Final = ("bash", "-o", "pipefail", "-c")
"""A shell whose pipe fails if any program in it does."""

SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_COMMAND_OPTION: Final = re.compile(r"-[a-z]*c")
_PIPE: Final = re.compile(r"(?<![|>])\|(?!\|)")
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\\.")
_ARGUMENTS: Final = re.compile(r"\$\{?[@*1-9]")
_FOR_A_SHELL: Final = re.compile(r"[|><&;$`*]")


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
    """Return why words that are put behind a command reach no program, None if they do.

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
    """Yield a warning for a pipe in the text for a shell: its exit code is that of the last program alone."""
    text = _text_for_shell(words)
    if text is not None and _PIPE.search(_QUOTED.sub("", text)) and "pipefail" not in " ".join(words):
        yield (
            f"workload.command[{words.index(text)}]: a failure before a '|' counts as a success; "
            f"write [{', '.join(map(quoted, SHELL))}, {quoted(one_line(text)[:60])}]"
        )
