"""The hook of the repository that checks the subjects of commits."""

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[3] / "scripts" / "hooks" / "commit-msg"


@pytest.mark.parametrize(
    ("message", "fact"),
    [
        ("runner: release devices before removing the container\n\nBecause.\n", ""),
        ("docs, tests: say it once\n", ""),
        ("Merge branch 'x'\n", ""),
        (f"runner: {'x' * 65}\n", "at most 72"),
        ("fixed it\n", 'write "package: what is true afterwards"'),
        ("runner: Release devices\n", 'write "package: what is true afterwards"'),
        ("runner: release devices.\n", "no full stop"),
        ("runner: release devices\nbecause\n", "second line empty"),
    ],
)
def test_a_subject_is_as_contributing_says(tmp_path: Path, message: str, fact: str) -> None:
    (tmp_path / "message").write_text(message)
    done = subprocess.run([HOOK, tmp_path / "message"], capture_output=True, text=True, check=False)
    assert (done.returncode, fact in done.stderr) == (1 if fact else 0, True)
