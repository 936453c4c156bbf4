"""A change of wording costs a review: ``--accept`` writes what is said now into the tests."""

import os
import subprocess
import sys
from pathlib import Path

from tests.accept import replace_literal

ROOT = Path(__file__).parents[3]
BEFORE = """\
from pathlib import Path

SAID = "the job is là, and \\"waits\\""

def test_a_literal() -> None:
    assert SAID == "it waits"

def test_one_of_several() -> None:
    assert (1, [SAID]) == (1, ["it is waiting"])

def test_lines() -> None:
    assert [SAID, "and goes on"] == (Path(__file__).parent / "words.expected").read_text().splitlines()

def test_what_stands_there_twice() -> None:
    assert SAID == "twice", "twice"
"""


def test_texts_that_differ_are_accepted_and_the_tests_pass_then(tmp_path: Path) -> None:
    test, lines = tmp_path / "test_words.py", tmp_path / "words.expected"
    test.write_text(BEFORE)
    lines.write_text("it waits\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*options: str) -> str:
        command = [*argv, "--rootdir", str(tmp_path), *options, test.name]
        said = subprocess.run(
            command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True, check=False
        )
        return said.stdout.splitlines()[-1]

    assert "4 failed" in run()
    assert test.read_text() == BEFORE
    assert "4 failed" in run("-p", "tests.accept")
    assert lines.read_text() == 'the job is là, and "waits"\nand goes on\n'
    assert "1 failed, 3 passed" in run()


def test_a_literal_of_several_lines_is_replaced(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('é = (\n    "é one "\n    "two"\n); other = 1\n')
    assert replace_literal(module, "é one two", "three\n")
    assert module.read_text() == 'é = (\n    "three\\n"\n); other = 1\n'
    assert not replace_literal(module, "one", "three")
