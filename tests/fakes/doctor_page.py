"""The page of what ``runner doctor`` says on hosts that were tried, beside what it says."""

import json
import re
from pathlib import Path
from typing import Final

import click

from runner.cli.doctor import terminal_text
from runner.core.doctor import Finding, Verdict

PAGE: Final = Path(__file__).parents[2] / "provenance" / "hosts.md"
DIFFERS: Final = re.compile(
    r"[\d.]+ [KMGT]iB|(?<=inotify watches: )\d+|(?<=inotify instances: )\d+|\+dfsg\d*"
)
SHORT_OF_DISK: Final = re.compile(r"^warning +(free disk[^;\n]*);.*\n +->.*$", re.MULTILINE)


def check(section: str, printed: str) -> None:
    """Compare the console below a heading with the output of ``runner doctor --json``."""
    below = PAGE.read_text().partition(f"\n## {section}\n")[2]
    written = below.partition("$ runner doctor\n")[2].partition("```")[0]
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    findings = [Finding(**{**each, "verdict": Verdict(each["verdict"])}) for each in found]
    said = "\n".join(click.unstyle(terminal_text(each)) for each in findings)
    assert _comparable(said) == _comparable(written), said


def _comparable(text: str) -> list[str]:
    """Return the lines but for sizes, the clock and a full disk, which belong to the machine below."""
    text = SHORT_OF_DISK.sub(r"ok        \1", text)
    return [DIFFERS.sub("N", line) for line in text.splitlines() if " clock: " not in line]
