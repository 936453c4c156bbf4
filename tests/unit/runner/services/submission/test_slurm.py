"""Requests of a job file to Slurm: their form, the operator's settings, and Slurm's own check."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runner.base.textfile import FileError
from runner.core.ports.executor import BatchOptions, BatchRequest, GpuRequest
from runner.core.ports.users import Owner
from runner.files.job.load import parse_job
from runner.files.job.model import JobFile
from runner.files.settings.slurm import RESERVED, LocalRoom, SlurmSettings
from runner.services.submission.slurm import find_slurm_problems

ADA = Owner(1001, 1001, "ada")
GANG = "workload: {kind: program, command: ['true'], launcher: gang, processes: 2}\n"
PROGRAM = "name: tiny\nworkload: {kind: program, command: ['true']}\n"


@dataclass
class FakeSlurm:
    """Satisfies ``runner.agent.ports.BatchCheck``."""

    answer: tuple[str, str] | None = None
    asked: list[BatchRequest] = field(default_factory=list)

    def problem(self, request: BatchRequest, owner: Owner) -> tuple[str, str] | None:
        assert owner == ADA
        self.asked.append(request)
        return self.answer


def job(more: str = "") -> JobFile:
    before = "name: tiny\n" if more.startswith("workload:") else PROGRAM
    return parse_job(f"{before}{more}\n".encode(), Path("job.yaml"))


def facts(more: str, settings: SlurmSettings, slurm: FakeSlurm | None) -> dict[str, str]:
    found = find_slurm_problems(job(more), settings, ADA, slurm)
    return {".".join(map(str, path)): fact for path, fact in found}


def test_without_slurm_its_section_is_refused_and_its_absence_is_fine() -> None:
    assert facts("", SlurmSettings(), None) == {}
    assert list(facts("slurm: {partition: gpu}", SlurmSettings(), None)) == ["slurm"]


def test_without_slurm_several_nodes_are_one_clear_line() -> None:
    [(place, fact)] = facts(f"{GANG}resources: {{nodes: 2}}", SlurmSettings(), None).items()
    assert place == "resources.nodes"
    assert fact.startswith("2 nodes need Slurm, and jobs do not run in Slurm here")


SHELL = "workload: {kind: program, command: [bash], terminal: true}\n"


def test_a_terminal_on_a_node_is_refused_with_the_command_of_slurm_that_has_one() -> None:
    slurm = FakeSlurm()
    [(place, fact)] = facts(SHELL, SlurmSettings(), slurm).items()
    assert place == "workload.terminal"
    assert fact.endswith("leave it out, or type: srun --pty bash")
    assert slurm.asked == []
    settings = SlurmSettings(local=LocalRoom(cpus=4, memory_bytes=2**40))
    assert "executor: [local]" in facts(SHELL, settings, slurm)["workload.terminal"]
    assert facts(f"{SHELL}executor: [local]", settings, slurm) == {}
    assert facts(SHELL, SlurmSettings(), None) == {}


def test_nodes_priority_and_class_are_told_to_slurm() -> None:
    slurm = FakeSlurm()
    written = f"{GANG}resources: {{nodes: 2}}\npriority: 20\nqueue: {{priority_class: idle}}"
    assert facts(written, SlurmSettings(containers="crun", nodes_network="host"), slurm) == {}
    [asked] = slurm.asked
    assert (asked.nodes, asked.priority, asked.priority_class) == (2, 20, "idle")


def test_slurm_is_asked_for_what_the_job_needs() -> None:
    slurm = FakeSlurm(("slurm.partition", "Slurm says: no"))
    written = "resources: {gpus: 2, time_limit: 1h}\nslurm: {partition: gpu, extra: [--exclusive]}"
    allowed = SlurmSettings(extra=("--exclusive",))
    assert facts(written, allowed, slurm) == {"slurm.partition": "Slurm says: no"}
    [asked] = slurm.asked
    assert asked.gpus == GpuRequest(2)
    assert asked.options == BatchOptions(partition="gpu", extra=("--exclusive",))
    assert asked.time_left is not None


@pytest.mark.parametrize(
    ("written", "settings", "place"),
    [
        ("slurm: {partition: secret}", SlurmSettings(partitions=("gpu", "long")), "slurm.partition"),
        ("slurm: {partition: 'gpu,secret'}", SlurmSettings(partitions=("gpu",)), "slurm.partition"),
        ("slurm: {account: physics}", SlurmSettings(accounts=()), "slurm.account"),
        ("slurm: {qos: high}", SlurmSettings(qoses=("low",)), "slurm.qos"),
        ("slurm: {constraint: h100}", SlurmSettings(constraints=("a100",)), "slurm.constraint"),
        ("slurm: {reservation: mine}", SlurmSettings(reservations=()), "slurm.reservation"),
        ("slurm: {extra: [--exclusive, --nice=5]}", SlurmSettings(extra=("exclusive",)), "slurm.extra.1"),
        ("network: outbound", SlurmSettings(containers="crun"), "network"),
        (f"{GANG}resources: {{nodes: 2}}", SlurmSettings(containers="crun"), "resources.nodes"),
    ],
)
def test_what_the_operator_does_not_allow_is_refused_before_slurm_is_asked(
    written: str, settings: SlurmSettings, place: str
) -> None:
    slurm = FakeSlurm()
    assert list(facts(written, settings, slurm)) == [place]
    assert slurm.asked == []


def test_what_the_operator_allows_is_slurms_matter() -> None:
    slurm = FakeSlurm()
    settings = SlurmSettings(partitions=("gpu", "long"), constraints=("h100&nvlink",))
    assert facts("slurm: {partition: 'gpu,long', constraint: 'h100&nvlink'}", settings, slurm) == {}
    assert len(slurm.asked) == 1


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("{partition: 'a b'}", "slurm.partition"),
        ("{account: '-x'}", "slurm.account"),
        ("{constraint: '$(id)'}", "slurm.constraint"),
        ("{extra: ['-p x']}", "slurm.extra"),
        ('{extra: ["--comment=a\\nb"]}', "slurm.extra"),
        ("{queue: gpu}", "slurm.queue"),
    ],
)
def test_what_is_no_name_or_option_of_slurm_is_refused_at_its_line(written: str, place: str) -> None:
    with pytest.raises(FileError) as error:
        job(f"slurm: {written}")
    assert str(error.value).startswith("job.yaml:3:")
    assert f" {place}" in str(error.value)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_no_operator_can_allow_the_runners_own_options(name: str) -> None:
    with pytest.raises(ValueError, match="own option of sbatch"):
        SlurmSettings(extra=(f"--{name}",))


ROOM = LocalRoom(cpus=2, memory_bytes=8 * 2**30)


@pytest.mark.parametrize(
    ("written", "settings", "in_slurm", "fact"),
    [
        ("executor: [local, slurm]", SlurmSettings(), True, None),
        ("executor: [local, slurm]", SlurmSettings(), False, None),
        ("executor: [slurm]", SlurmSettings(), False, "jobs do not run in Slurm here"),
        ("executor: [local]", SlurmSettings(), False, None),
        ("executor: [local]", SlurmSettings(), True, "jobs run in Slurm alone here"),
        ("executor: [local]", SlurmSettings(local=ROOM), True, None),
        ("executor: [local]\nresources: {gpus: 1}", SlurmSettings(local=ROOM), True, "this machine offers"),
        ("executor: [local]\nresources: {cpus: 3}", SlurmSettings(local=ROOM), True, "this machine offers"),
    ],
)  # fmt: skip
def test_a_job_names_a_place_that_there_is(
    written: str, settings: SlurmSettings, fact: str | None, *, in_slurm: bool
) -> None:
    found = facts(written, settings, FakeSlurm() if in_slurm else None)
    assert list(found) == ([] if fact is None else ["executor"])
    assert fact is None or found["executor"].startswith(fact)


def test_what_does_not_run_in_slurm_is_not_asked_of_it() -> None:
    slurm = FakeSlurm(("slurm", "no"))
    assert facts("executor: [local]", SlurmSettings(local=ROOM), slurm) == {}
    assert slurm.asked == []
