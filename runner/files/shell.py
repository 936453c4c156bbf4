"""What only a shell understands: the command of a program is started without one.

A text with a pipe in it, cut into words, would pass the pipe to the program as an argument.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from runner.base.textfile import one_line, quoted

SHELL_OPERATORS: Final = frozenset({"|", "||", "&&", ";", "<", ">", ">>"})
"""Alone in a list of words they are hardly ever meant as arguments."""

_FOR_A_SHELL: Final = re.compile(r"[|><&;$`*]")


def suggest_list(text: str, *, command: bool) -> str:
    """Return the list that was meant where a text stands; of a command that needs one, with a shell."""
    words = ["sh", "-c", text] if command and _FOR_A_SHELL.search(text) else text.split()
    return f"[{', '.join(map(quoted, words))}]"


def find_shell_warnings(command: Iterable[str]) -> Iterator[str]:
    """Yield a line for each word of a command that does nothing without a shell."""
    words = tuple(command)
    for number, word in enumerate(words):
        if word in SHELL_OPERATORS:
            begun = quoted(f"{one_line(' '.join(words[:number])[:40])} ...".lstrip())
            yield (
                f"workload.command[{number}]: '{word}' is passed to the program as it is; "
                f'for a shell write ["sh", "-c", {begun}]'
            )
