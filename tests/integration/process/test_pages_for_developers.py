"""The pages that say how to extend the runner: what stands there is what one types."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLUGIN = ROOT / "examples" / "plugin"
DIFF = re.compile(r"```diff\n--- a/(?P<path>.+)\n\+\+\+ .+\n@@.*\n(?P<lines>(?:[ +-].*\n)+)```")


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / "howto" / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize(
    ("language", "file"), [("toml", "pyproject.toml"), ("python", "src/runner_series/plan.py")]
)
def test_the_page_shows_the_files_of_the_plug_in(language: str, file: str) -> None:
    assert blocks("add-a-workload.md", language) == [(PLUGIN / file).read_text()]


def test_the_fact_of_the_page_can_be_typed_and_tested_by_a_policy(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "add-a-fact.md").read_text()
    changes = list(DIFF.finditer(text))
    assert len(changes) == text.count("```diff")
    for package in ("runner", "jobs"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "vendor")
        )
    for change in changes:
        apply(tmp_path / change["path"], change["lines"].splitlines(keepends=True))
    files = [change["path"] for change in changes]
    subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--config", ROOT / "pyproject.toml", *files],
        cwd=tmp_path,
        check=True,
    )
    (policy,) = blocks("add-a-fact.md", "yaml")
    (tmp_path / "mine.yaml").write_text(policy)
    code = """
from pathlib import Path
from jobs.contract import Status
from runner.agent.attempts.facts import of_status
from runner.files.policy.load import read_policy
status = Status.model_validate({"step": 30, "total_steps": 100, "phase": "train", "time": 0})
assert of_status(status)["progress.steps_left"] == 70, of_status(status)
assert read_policy(Path("mine.yaml")).on_change[0].name == "nearly-done"
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def apply(file: Path, lines: list[str]) -> None:
    """Apply a hunk by its text, which must be there once."""
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    text = file.read_text()
    assert text.count(before) == 1, f"{file}: the page is about another text:\n{before}"
    file.write_text(text.replace(before, after))
