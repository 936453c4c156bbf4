"""The page of made-up machines: what is wrong with each, and that the report says it."""

import pytest

from runner.core.doctor import Verdict, examine
from scripts.docs.machines import MACHINES, transcript
from scripts.docs.page import BLOCK, PROVENANCE

WRONG = {
    "healthy": [],
    "old-driver": ["problem NVIDIA driver"],
    "no-driver": ["problem NVIDIA driver", "problem NVML", "problem /dev/nvidia*"],
    "half-updated-driver": ["problem NVML"],
    "no-toolkit": ["problem devices in containers"],
    "cdi-missing": ["problem devices in containers"],
    "engine-20-10-with-cdi": ["problem devices in containers"],
    "worn": [
        "warning NVML",
        *["warning GPU-0 NVIDIA H100 80GB HBM3"] * 3,
        "problem GPU-1 NVIDIA H100 80GB HBM3",
        "unknown cgroups",
        "warning free disk",
        "warning shared memory",
        "warning inotify watches",
        "unknown inotify instances",
        "warning clock",
    ],
    "amd": [],
    "amd-without-group": [
        "problem /dev/kfd",
        "problem /dev/dri/renderD*",
        "absent container engine",
    ],
    "amd-without-driver": ["problem AMD driver"],
    "stand-in": [
        "problem /dev/nvidia*",
        "warning GPU-0 NVIDIA H100 80GB HBM3",
        "problem GPU-1 Tesla V100-SXM2-16GB",
        *["warning GPU-1 Tesla V100-SXM2-16GB"] * 2,
        "problem devices in containers",
    ],
}


def test_the_page_has_each_machine_once() -> None:
    page = (PROVENANCE / "machines.md").read_text(encoding="utf-8")
    assert [name for _, name in BLOCK.findall(page)] == list(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_has_exactly_what_its_page_is_about(name: str) -> None:
    findings = examine(MACHINES[name])
    said = [f"{each.verdict} {each.subject}" for each in findings if each.verdict is not Verdict.OK]
    assert said == WRONG[name]


@pytest.mark.parametrize("name", MACHINES)
def test_what_keeps_jobs_from_running_has_a_next_step_and_exit_code_4(name: str) -> None:
    problems = [each for each in examine(MACHINES[name]) if each.verdict is Verdict.PROBLEM]
    assert all(each.advice for each in problems)
    assert transcript(name).endswith(f"$ echo $?\n{4 if problems else 0}\n```\n")


def test_a_step_that_is_done_is_not_advised() -> None:
    advice = {
        name: next(each.advice for each in examine(MACHINES[name]) if each.subject == "devices in containers")
        for name in ("no-toolkit", "cdi-missing", "engine-20-10-with-cdi")
    }
    assert ["install nvidia-container-toolkit" in text for text in advice.values()] == [True, False, False]
    assert "let gpu_injection be auto and register the runtime" in advice["engine-20-10-with-cdi"]
