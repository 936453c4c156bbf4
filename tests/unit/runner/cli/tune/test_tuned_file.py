"""The text of a tuned job file: the user's own, in which only the changed lines are new."""

import json
from pathlib import Path
from typing import Final

import pytest
import yaml

from runner.cli.bench.variants import read_base_job, written_fields
from runner.cli.tune.candidates import job_fields
from runner.cli.tune.search import Ratio, Search, ShortAttempt, TriedSetting, Variation
from runner.cli.tune.tuned_file import job_text

RATIO: Final = Ratio(1.5, 1.4, 1.6, 4)
ADDED: Final = "  # 1.50 (1.40 to 1.60, 4 pairs) x, was "
THREADS: Final = Variation("profile", "threads", 1, 2)
KERNEL: Final = Variation("environment", "KERNEL", "fast", "slow")
WORKERS: Final = Variation("command", "--workers", "4", "2")
PROGRAM: Final = "workload: {kind: program, command: [python, train.py, --workers, '2']}\n"


def tuned(tmp_path: Path, text: str, *kept: Variation) -> str:
    file = tmp_path / "job.yaml"
    file.write_text(text, newline="")
    base = read_base_job(str(file), None)
    rows = [TriedSetting(each, "faster", kept=True, ratio=RATIO) for each in kept]
    search = Search(lambda _: ShortAttempt(1.0, 1.0), lambda: 1.0, rows, kept, RATIO)
    found = job_text(base, search, "this machine")
    assert found.startswith("# runner tune job.yaml: 1.50 (1.40 to 1.60, 4 pairs) times as fast as before")
    said, wanted = (
        json.loads(json.dumps(each))
        for each in (written_fields(found.encode(), file), job_fields(base, kept))
    )
    assert said == wanted
    return "".join(line for line in found.splitlines(keepends=True)[2:] if not line.startswith("# --"))


def test_comments_anchors_and_order_stay(tmp_path: Path) -> None:
    text = f"""\
# of the summer
profile:       # measured by hand
  # the paper needs this
  deterministic: true   # never change
  threads: 2            # as many as it has

  compile: off
resources: &all
  cpus: 2               # of 64
environment:
  # see the notes
  KERNEL: slow
  OTHER: '1'

{PROGRAM}labels: {{a: &mark one, b: *mark}}
"""
    found = tuned(tmp_path, text, THREADS, KERNEL)
    threads, kernel = f"  threads: 1{ADDED}threads: 2 -> 1\n", f"  KERNEL: fast{ADDED}KERNEL: slow -> fast\n"
    expected = text.replace("  threads: 2            # as many as it has\n", threads)
    assert found == expected.replace("  KERNEL: slow\n", kernel)


def test_an_argument_changes_the_command_alone(tmp_path: Path) -> None:
    text = """\
workload:
  kind: program
  command:          # by hand
    - python
    - train.py
    - --workers=2   # slow
  # after it
  code: .
"""
    (tmp_path / "train.py").touch()
    found = tuned(tmp_path, text + "profile: cpu\n", WORKERS)
    assert found == (
        'workload:\n  kind: program\n  command: [python, train.py, "--workers=4"]\n  # after it\n  code: .\n'
        "profile:\n  extends: cpu\n"
    )


@pytest.mark.parametrize(
    "profile",
    [
        "",
        "profile: cpu  # plain\n",
        "profile: {extends: cpu, environment: {B: '2'}}\n",
        "profile:\n  {extends: cpu, compile: off}\n",
        "profile:\n  extends: cpu\n  environment:\n    B: '2'  # two\n",
        "profile:\n  extends: cpu\n  # to the end",
        "profile:\r\n  extends: cpu\r\n",
        "profile: &all\n  compile: off\nlabels: &own {a: b}\n",
    ],
)
def test_every_form_of_a_profile_gets_what_was_kept(tmp_path: Path, profile: str) -> None:
    found = tuned(tmp_path, f"# mine\n{PROGRAM}{profile}", THREADS, Variation("environment", "C", "3", None))
    assert f"threads: 1{ADDED}threads: 2 -> 1\n" in found
    assert f'C: "3"{ADDED}C: null -> 3\n' in found
    assert "# mine\n" in found


@pytest.mark.parametrize(
    "text",
    [
        '{"workload": {"kind": "program", "command": ["python"]}, "resources": {"cpus": 2}}',
        f"{PROGRAM}environment: {{KERNEL: &slow slow, OTHER: *slow}}\n",
        f"{PROGRAM}environment:\n  KERNEL: &slow slow\nlabels: {{OTHER: *slow}}\n",
        f"{PROGRAM}...\n",
    ],
)
def test_a_file_that_cannot_be_changed_by_lines_is_written_anew(tmp_path: Path, text: str) -> None:
    assert "fast" in tuned(tmp_path, text, KERNEL)


def test_a_built_in_job_is_written_whole() -> None:
    base = read_base_job("imu_stream", None)
    search = Search(lambda _: ShortAttempt(1.0, 1.0), lambda: 1.0, [], (THREADS,), RATIO)
    assert yaml.safe_load(job_text(base, search, "host"))["profile"] == {"extends": "auto", "threads": 1}
