"""Hints for commands that need a shell; the runner starts programs without one.

Without a shell, ``a | b`` passes the pipe to the program as an argument.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from runner.base.textfile import one_line, quoted

SHELL_OPERATORS: Final = frozenset({"|", "||", "&&", ";", "<", ">", ">>"})
"""As a word of its own, each of these is almost certainly meant for a shell."""

_FOR_A_SHELL: Final = re.compile(r"[|><&;$`*]")


def suggest_list(text: str, *, command: bool) -> str:
    """Return a text as the list that the field needs; a command that needs a shell gets one."""
    words = ["sh", "-c", text] if command and _FOR_A_SHELL.search(text) else text.split()
    return f"[{', '.join(map(quoted, words))}]"


def find_shell_warnings(command: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each word of a command that only a shell understands."""
    words = tuple(command)
    for number, word in enumerate(words):
        if word in SHELL_OPERATORS:
            begun = quoted(f"{one_line(' '.join(words[:number])[:40])} ...".lstrip())
            yield (
                f"workload.command[{number}]: '{word}' is passed to the program as it is; "
                f'for a shell write ["sh", "-c", {begun}]'
            )
