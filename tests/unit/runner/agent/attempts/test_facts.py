"""Facts from a run directory with real files in it, and nothing that nobody said."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobs.contract import (
    AttemptSpec,
    Cause,
    Effective,
    FileDigest,
    Manifest,
    Phase,
    Profile,
    Program,
    Result,
    RunPaths,
    Status,
    Switch,
    dump,
    file_sha256,
)
from jobs.contract.plans.causal_lm import CausalLm
from runner.adapters.host.run_directory import HostRunDirectory
from runner.agent.attempts import facts as exit_facts
from runner.agent.attempts.diagnosis import find_exception
from runner.agent.attempts.service import AttemptService
from runner.agent.interface import ExitFindings
from runner.base.errors import Unavailable
from runner.core.job.attempt import Allocation, Attempt, Start, StartFrom
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing, Stopping, StopReason
from runner.core.policy.adjustments import Overrides
from runner.core.policy.decision import Situation
from runner.core.policy.evaluate import decide
from runner.core.policy.explain import OUT_OF_DEVICE_MEMORY
from runner.core.policy.facts import DecisionPoint, FactValue
from runner.core.policy.history import History
from runner.core.policy.model import Setting, Verb
from runner.core.ports.checkpoints import SavedCheckpoints
from runner.core.ports.executor import Gone, Key
from runner.core.ports.store import DecisionRow, JobRow
from runner.core.ports.users import Owner
from runner.files.job.load import parse_job
from runner.files.revision import Revision
from tests.fakes.daemon.clock import FakeClock
from tests.fakes.daemon.services import attempt_config
from tests.fakes.engine.images import FakeImages

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ME = Owner(1001, 1001, "ann")
KEY = Key("i1", "1", 1)
FOUND_A_BATCH = b"batch 64: CUDA out of memory. Tried to allocate 2 GiB; going on with 32\n"
TRACEBACK = b'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n'
LAUNCHER = (
    TRACEBACK + b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n" + b"=====\n" * 30
)
OF_RANK_1 = b"".join(b"[rank1]: " + line for line in TRACEBACK.splitlines(keepends=True))
LM = "workload: {kind: causal_lm, data: stdlib, batch_size: 16}\n"
PROGRAM = "workload: {kind: program, command: [./train]}\n"


class Place:
    """One attempt of a job whose files a test writes."""

    def __init__(self, path: Path, text: str = LM) -> None:
        job = parse_job(text.encode(), path / "job.yaml")
        revision = Revision(
            job=job,
            path=str(path / "job.yaml"),
            accelerator="cpu",
            uid=1001,
            gid=1001,
            groups=(),
            user="ann",
        )
        state = Job("1", Preparing(NOW), time_limit=job.resources.time_limit)
        self.row = JobRow(state, "job", ME, NOW, 50, RevisionText.of(revision.model_dump_json()))
        config = replace(attempt_config(path / "jobs", FakeImages(), FakeClock()), in_container=False)
        self.attempt_service = AttemptService(config)
        self.attempt = Attempt(1, 1)
        self.paths = RunPaths(path / "jobs" / "1", 1, 1)
        self.paths.attempt_dir.mkdir(parents=True)
        self.paths.lineage_dir.mkdir(parents=True)

    def status(self, **said: object) -> None:
        known = {"phase": Phase.TRAIN, "time": 1.0, "step": 50, "total_steps": 200, **said}
        self.paths.status.write_text(dump(Status.model_validate(known)))

    def result(self, cause: Cause, **said: object) -> None:
        self.paths.result.write_text(dump(Result.model_validate({"cause": cause, "step": 50, **said})))

    def effective(self, **said: object) -> None:
        switches = {
            "eval_batch": Switch(requested="null", applied="8"),
            "loader_workers": Switch(requested="4", applied="2"),
        }
        known = Effective(
            device="cpu",
            device_name="cpu",
            precision="bf16",
            threads=1,
            micro_batch=4,
            accumulation=4,
            switches=switches,
        )
        self.paths.effective.write_text(dump(known.model_copy(update=said)))

    def checkpoint(self, step: int, attempt: int = 1) -> Path:
        where = self.paths.lineage_dir / f"step-{step:08d}"
        where.mkdir()
        (where / "state.pt").write_bytes(b"weights")
        digest = FileDigest(bytes=7, sha256=file_sha256(where / "state.pt"))
        manifest = Manifest(
            contract_version=1,
            job_id="1",
            step=step,
            lineage=1,
            attempt=attempt,
            revision=1,
            created=0.0,
            files={"state.pt": digest},
        )
        (where / "manifest.json").write_text(dump(manifest))
        return where

    def found(self, exit_code: int | None, *, oom: bool = False, error: str = "") -> ExitFindings:
        return self.attempt_service.examine(self.row, self.attempt, Gone(KEY, exit_code, oom, error))

    def facts(self, exit_code: int | None, *, oom: bool = False) -> dict[str, FactValue]:
        return dict(self.found(exit_code, oom=oom).facts)


Made = Callable[[str], Place]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return lambda text: Place(tmp_path, text)


@pytest.fixture
def place(made: Made) -> Place:
    return made(LM)


# --- How it ended


@pytest.mark.parametrize(
    ("code", "said", "kind", "cause"),
    [
        (0, Cause.COMPLETED, "success", "completed"),
        (0, None, "no_result", "no_result"),
        (1, None, "exception", "exception"),
        (75, Cause.STOPPED, "exception", "stopped"),
        (97, None, "exception", "non_finite"),
        (137, None, "signal", "killed"),
        (200, None, "exception", "exception"),
        (None, None, "vanished", "vanished"),
    ],
)
def test_the_class_of_an_end_comes_from_the_executor_and_the_result(
    place: Place, code: int | None, said: Cause | None, kind: str, cause: str
) -> None:
    if said is not None:
        place.result(said)
    facts = place.facts(code)
    assert (facts["exit.class"], facts["cause"], facts.get("exit.code")) == (kind, cause, code)
    assert facts["oom.host"] is False


def test_a_program_that_ends_when_it_is_told_to_has_not_finished_unless_it_says_so(made: Made) -> None:
    place = made(PROGRAM)
    asked = Stopping(NOW, "none", place.attempt, Allocation(), StopReason.HOLD, NOW)
    place.row = replace(place.row, job=replace(place.row.job, state=asked))

    def cause(moment: datetime | None) -> str:
        gone = Gone(KEY, 0, at=moment)
        found = place.attempt_service.examine(place.row, place.attempt, gone)
        assert (found.facts["exit.class"] == "success") is found.ended.completed
        return found.ended.cause

    before, after = NOW - timedelta(seconds=1), NOW + timedelta(seconds=1)
    assert [cause(moment) for moment in (None, before, after)] == ["stopped", "completed", "stopped"]
    place.result(Cause.COMPLETED)
    assert cause(after) == "completed"


def test_what_the_kernel_says_about_memory_is_a_fact_of_its_own(place: Place) -> None:
    facts = place.facts(137, oom=True)
    assert (facts["oom.host"], facts["cause"]) == (True, "host_oom")


def test_a_plain_program_has_no_knobs_and_is_told_its_own_limit(made: Made) -> None:
    place = made(PROGRAM + "resources: {memory: 128MiB}\n")
    starved = place.found(137, oom=True)
    assert starved.ended.message == "the kernel killed a process; raise resources.memory (128MiB)"
    assert starved.facts["turnable"] is False
    assert place.found(75).ended.message == "left to be started again (exit 75, or 0 after SIGTERM)"
    place.checkpoint(40, attempt=2)
    assert place.found(75).ended.message == "left to be started again (exit 75, or 0 after SIGTERM)"
    place.checkpoint(50)
    assert place.found(75).ended.message == "stopped after saving"
    place.attempt = replace(place.attempt, turned=Overrides(loader_workers=1))
    assert place.facts(137)["turnable"] is True
    place.attempt = replace(place.attempt, turned=Overrides(avoid=("GPU-a",)))  # another device is no knob
    assert place.facts(137)["turnable"] is False
    place.effective()
    assert place.facts(137)["turnable"] is True


def test_a_plain_program_that_ran_out_of_device_memory_fails_and_says_what_to_do(made: Made) -> None:
    place = made(PROGRAM)
    place.paths.log.write_bytes(b"torch.OutOfMemoryError: CUDA out of memory. Tried\n")
    found = place.found(1)
    situation = Situation(found.facts, NOW, NOW, found.effective, "1")
    verdict = decide(found.pinned.policy, DecisionPoint.EXIT, History(), situation).action
    assert (verdict.verb, verdict.adjust, verdict.reason) == (Verb.GIVE_UP, (), OUT_OF_DEVICE_MEMORY)


SHARED_MEMORY_FULL = (
    b"RuntimeError: unable to allocate shared memory(shm) for file </torch_9_1>: No space left on device",
    b"RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that",
    b"Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    b"RuntimeError: unable to write to file </torch_9_1>: No space left on device (28)",
    b"OSError: [Errno 28] No space left on device: '/dev/shm/batch'",
    b"misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-x to 9637892 bytes",
)


@pytest.mark.parametrize("text", [LM, PROGRAM])
@pytest.mark.parametrize("line", SHARED_MEMORY_FULL)
def test_a_full_shared_memory_is_recognised_by_the_end_of_the_log(made: Made, text: str, line: bytes) -> None:
    place = made(text)
    place.paths.log.write_bytes(TRACEBACK + line + b"\n")
    assert (place.facts(1)["cause"], place.facts(1)["root"]) == ("shared_memory", "shared_memory")
    place.paths.log.write_bytes(line + b"\n" + TRACEBACK + b"KeyError: 3\n")
    assert place.facts(1)["cause"] == "exception"


@pytest.mark.parametrize(
    ("text", "verb", "changed"), [(PROGRAM, Verb.GIVE_UP, []), (LM, Verb.RESTART, [Setting.WORKERS])]
)
def test_without_shared_memory_a_program_fails_at_once_and_a_training_takes_fewer_workers(
    text: str, verb: Verb, changed: list[Setting], made: Made
) -> None:
    place = made(text)
    place.paths.log.write_bytes(SHARED_MEMORY_FULL[0])
    if text == LM:
        place.effective()
    found = place.found(1)
    situation = Situation(found.facts, NOW, NOW, found.effective, "1")
    decision = decide(found.pinned.policy, DecisionPoint.EXIT, History(), situation).action
    assert (decision.verb, [change.knob for change in decision.adjust]) == (verb, changed)


def test_a_training_has_the_knobs_that_remedies_turn(place: Place) -> None:
    assert place.facts(137, oom=True)["turnable"] is True


def test_the_root_is_the_message_without_what_varies(place: Place) -> None:
    place.result(Cause.EXCEPTION, message="KeyError: row 17 of /data/a/b.csv")
    assert place.facts(1)["root"] == "exception: KeyError: row N of b.csv"


@pytest.mark.parametrize(
    ("text", "code", "said", "log", "known"),
    [
        (LM, 98, None, b"", True),
        (LM, 1, Cause.DEVICE_OUT_OF_MEMORY, b"", True),
        (LM, 1, Cause.EXCEPTION, b"torch.OutOfMemoryError: CUDA out of memory", False),
        (LM, 0, Cause.COMPLETED, b"", False),
        (PROGRAM, 1, None, b"step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n", True),
        (PROGRAM, 134, None, b"what():  CUDA out of memory. Tried\n", True),
        (PROGRAM, 1, None, b"torch.OutOfMemoryError\n" + b"." * 20000, None),
        (PROGRAM, 1, None, FOUND_A_BATCH + b"step\n" * 30, None),
        (PROGRAM, 1, None, FOUND_A_BATCH + TRACEBACK + b"ConnectionError: reset\n", None),
        (PROGRAM, 1, None, TRACEBACK + b"RuntimeError: CUDA out of memory.\n" + b"freed\n" * 30, True),
        (PROGRAM, 1, None, TRACEBACK + b"RuntimeError: CUDA out of memory.\n" + LAUNCHER, True),
        (PROGRAM, 137, None, FOUND_A_BATCH, None),
        (PROGRAM, 1, None, b"KeyError: 3\n", None),
    ],
)
def test_device_memory_is_the_programs_word_and_for_others_a_pattern_in_the_end_of_the_log(  # noqa: PLR0913, PLR0917
    made: Made,
    text: str,
    code: int,
    said: Cause | None,
    log: bytes,
    known: bool | None,  # noqa: FBT001
) -> None:
    place = made(text)
    place.paths.log.write_bytes(log)
    if said is not None:
        place.result(said)
    assert place.facts(code).get("oom.device") is known


def test_a_figure_that_is_not_finite_is_as_one_that_is_not_there(place: Place) -> None:
    place.paths.status.write_text(
        '{"phase": "train", "time": 1.0, "step": 5, "items_per_s": 1e999, "loss": NaN}'
    )
    place.paths.result.write_text('{"cause": "exception", "metrics": {"a": NaN, "b": 2.0, "c": -1e999}}')
    facts = place.facts(4)
    assert (facts["progress.step"], facts["cause"]) == (0, "exception")
    assert "progress.rate_recent" not in facts
    directory = place.attempt_service.directory(place.row)
    result, status = directory.result(place.paths), directory.status(place.paths)
    assert result is not None
    assert status is not None
    assert (result.metrics, status.items_per_s, status.loss) == ({"b": 2.0}, None, None)


@pytest.mark.parametrize(
    ("code", "said", "known"),
    [(97, None, True), (97, Cause.NON_FINITE, True), (1, Cause.EXCEPTION, False), (1, None, None)],
)
def test_a_loss_that_is_not_finite_is_known_where_somebody_said_so(
    place: Place,
    code: int,
    said: Cause | None,
    known: bool | None,  # noqa: FBT001
) -> None:
    if said is not None:
        place.result(said)
    assert place.facts(code).get("nan") is known
    assert place.found(code).poisoned_at == (50 if said is Cause.NON_FINITE else None)


# --- How far it came


def test_without_reports_nothing_is_known_about_progress(place: Place) -> None:
    facts = place.facts(137)
    assert [name for name in facts if name.startswith(("progress.", "phase", "data_wait"))] == [
        "progress.advanced"
    ]


def test_progress_is_what_the_program_reported_last(place: Place) -> None:
    place.status(items_per_s=80.0, data_wait=0.25)
    place.paths.metrics.write_text('{"items_per_s": 60}\n{"items_per_s": 100}\n')
    facts = place.facts(137)
    assert {
        "phase": "train",
        "progress.step": 50,
        "progress.total": 200,
        "progress.total_fraction": 0.25,
        "progress.rate": 80.0,
        "progress.rate_recent": 80.0,
        "data_wait": 0.25,
    }.items() <= facts.items()


def test_the_phase_of_the_failure_outranks_the_last_heartbeat(place: Place) -> None:
    place.status(phase=Phase.DRAIN)
    assert place.facts(137)["phase"] == "drain"
    place.result(Cause.DEVICE_OUT_OF_MEMORY, phase=Phase.EVAL, step=51)
    facts = place.facts(98)
    assert (facts["phase"], facts["progress.step"]) == ("eval", 51)


def test_the_share_of_an_epoch_is_known_where_the_program_has_said_how_long_one_is(place: Place) -> None:
    place.status()
    assert "progress.epoch_fraction" not in place.facts(137)
    place.effective(steps_per_epoch=40)
    assert place.facts(137)["progress.epoch_fraction"] == 0.25


def test_a_total_that_was_passed_makes_no_fraction_beyond_one(place: Place) -> None:
    place.status(step=300)
    assert place.facts(137)["progress.total_fraction"] == 1.0
    place.status(total_steps=None)
    assert "progress.total_fraction" not in place.facts(137)


# --- What it saved


def test_checkpoints_are_verified_and_counted(place: Place) -> None:
    for step in (10, 20, 30):
        place.checkpoint(step)
    (place.paths.lineage_dir / "step-00000030" / "state.pt").write_bytes(b"weighty")
    place.attempt = replace(place.attempt, began=10)
    found = place.found(137)
    assert (found.steps, found.ended.checkpoint_step) == ((20, 10), 20)
    expected = {
        "checkpoint.present": True,
        "checkpoint.valid": True,
        "checkpoint.step": 20,
        "checkpoint.count": 2,
        "checkpoint.rejected": 1,
        "checkpoint.compatible": True,
        "progress.advanced": True,
    }
    assert expected.items() <= found.facts.items()
    changed = (place.paths.lineage_dir / "step-00000020").stat().st_ctime
    assert found.facts["checkpoint.age_s"] == pytest.approx(FakeClock().now().timestamp() - changed)


@pytest.mark.parametrize(("began", "advanced"), [(None, True), (10, True), (20, False), (30, False)])
def test_progress_is_a_newer_checkpoint_than_it_began_with(
    place: Place,
    began: int | None,
    advanced: bool,  # noqa: FBT001
) -> None:
    place.checkpoint(20)
    place.attempt = replace(place.attempt, began=began)
    assert place.facts(137)["progress.advanced"] is advanced


def test_what_another_attempt_saved_fits_for_all_that_is_known(place: Place) -> None:
    place.checkpoint(20, attempt=7)
    assert "checkpoint.compatible" not in place.facts(137)


def test_no_checkpoint_is_known_to_be_none(place: Place) -> None:
    facts = place.facts(137)
    assert (facts["checkpoint.present"], facts["checkpoint.valid"], facts["checkpoint.count"]) == (
        False,
        False,
        0,
    )
    assert "checkpoint.step" not in facts
    assert "checkpoint.age_s" not in facts


# --- What took effect


def test_what_took_effect_outranks_what_was_asked_for(place: Place) -> None:
    place.effective(compile_graphs=2)
    facts = place.facts(137)
    assert {name.removeprefix("effective."): facts[name] for name in facts if "effective." in name} == {
        "profile": "cpu",
        "micro_batch": 4,
        "eval_batch": 8,
        "workers": 2,
        "precision": "bf16",
        "compile": True,
        "memory": 4 * 1024**3,
    }


def test_an_effective_file_that_leaves_things_out_says_as_much(place: Place) -> None:
    place.effective(switches={}, precision="fp8")
    facts = place.facts(137)
    assert (facts["effective.eval_batch"], facts["effective.workers"]) == (4, 0)
    assert "effective.precision" not in facts  # no word of ours: a hint that makes no sense


def test_an_attempt_that_ended_before_it_could_say_had_what_it_was_asked_for(place: Place) -> None:
    place.attempt = replace(place.attempt, turned=Overrides(micro_batch=8, loader_workers=3))
    facts = place.facts(98)
    assert (facts["effective.micro_batch"], facts["effective.eval_batch"]) == (8, 8)
    assert facts["effective.workers"] == 3


def test_what_nobody_asked_for_is_not_known() -> None:
    spec = AttemptSpec(
        job_id="1",
        attempt=1,
        lineage=1,
        workload=Program(command=("x",)),
        profile=Profile(precision="auto", micro_batch="auto"),
    )
    assert exit_facts.of_settings(spec, "cpu", None) == {"effective.profile": "cpu", "effective.workers": 0}


def test_two_attempts_ran_alike_only_if_nothing_that_matters_differs(place: Place) -> None:
    first = place.found(137).effective
    place.attempt = replace(place.attempt, number=1, turned=Overrides(micro_batch=8))
    assert place.found(137).effective != first
    place.attempt = replace(place.attempt, turned=Overrides())
    assert place.found(1).effective == first
    place.effective()
    assert place.found(137).effective != first


def test_the_digest_does_not_count_attempts() -> None:
    spec = AttemptSpec(job_id="1", attempt=1, lineage=1, workload=CausalLm(data="/data/workload"))
    later = spec.model_copy(update={"attempt": 5, "lineage": 2, "resume_step": 40, "job_id": "2"})
    other = spec.model_copy(update={"seed": 1})
    digests = [
        exit_facts.digest_settings(each, {"effective.micro_batch": 4}) for each in (spec, later, other)
    ]
    assert digests[0] == digests[1] != digests[2]


def test_the_policy_of_a_job_comes_with_the_findings(made: Made) -> None:
    place = made(LM + "retry: {max_attempts: 2}\nresources: {time_limit: 1h}\n")
    policy = place.found(1).pinned.policy
    assert (policy.ceilings.attempts, policy.ceilings.wall) == (2, timedelta(hours=1))
    place.row = replace(place.row, job=replace(place.row.job, time_limit=timedelta(hours=9)))
    longer = place.found(1).pinned.policy
    assert longer.ceilings.wall == timedelta(hours=9), "a later revision allows more, at once"


def test_a_decision_is_left_beside_the_attempt(place: Place) -> None:
    place.attempt_service.save_decision(place.row, DecisionRow("1", 1, "exit", NOW, '{"record": 1}'))
    beside = place.paths.attempt_dir.with_name("1.exit.json")
    assert json.loads(beside.read_text()) == {"record": 1}


# --- What cannot be read


DEEP = "[" * 100_000


@pytest.mark.parametrize("name", ["status.json", "result.json", "effective.json", "metrics.jsonl", "log.txt"])
def test_a_report_that_is_nested_deeply_keeps_no_attempt_from_ending(place: Place, name: str) -> None:
    (place.paths.attempt_dir / name).write_text(DEEP)
    assert place.facts(1)["exit.code"] == 1


@pytest.mark.parametrize("name", ["status", "result", "effective", "rates", "tail", "there", "saved"])
def test_a_look_that_fails_leaves_its_facts_unknown_and_the_attempt_has_ended(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place.checkpoint(10)
    place.status()
    place.result(Cause.COMPLETED)
    place.effective()
    place.paths.metrics.write_text("{}")

    def fail(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(HostRunDirectory, name, fail)
    found = place.found(1)
    assert (found.ended.exit_code, found.facts["exit.code"]) == (1, 1)
    if name == "saved":
        assert not {"checkpoint.present", "checkpoint.valid", "progress.advanced"} & set(found.facts)
    else:
        assert found.facts["checkpoint.step"] == 10


def test_a_directory_that_cannot_be_read_now_is_read_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Unavailable("no answer from the file system")

    monkeypatch.setattr(HostRunDirectory, "status", fail)
    place.status()
    with pytest.raises(Unavailable, match="no answer"):
        place.found(1)


def test_what_depends_on_a_checkpoint_that_was_not_verified_is_unknown() -> None:
    attempt = Attempt(2, 1, began=10)
    unverified = ("step-00000020: not verified in time",)
    nothing = exit_facts.of_checkpoints(SavedCheckpoints(unverified=unverified), attempt, NOW)
    assert nothing == {"checkpoint.present": True}
    older = exit_facts.of_checkpoints(SavedCheckpoints(steps=(10,), unverified=unverified), attempt, NOW)
    assert older == {"checkpoint.present": True, "checkpoint.valid": True, "checkpoint.step": 10}
    newer = exit_facts.of_checkpoints(SavedCheckpoints(steps=(15,), unverified=unverified), attempt, NOW)
    assert newer["progress.advanced"] is True


@pytest.mark.parametrize(
    ("attempt", "shown", "known"),
    [(Attempt(2, 1), 10, "True"), (Attempt(2, 1), 11, "False"), (Attempt(5, 2), None, "False")],
)
def test_a_first_checkpoint_is_doubted_once_and_not_after_a_later_step(
    attempt: Attempt, shown: int | None, known: str
) -> None:
    saved = SavedCheckpoints(steps=(10,), only_first=True, advanced=False)
    facts = exit_facts.of_checkpoints(saved, attempt, NOW, shown=shown)
    assert str(facts["checkpoint.only_first"]) == known
    of_manifests = replace(saved, only_first=None)
    assert "checkpoint.only_first" not in exit_facts.of_checkpoints(of_manifests, attempt, NOW)


def test_what_is_newer_than_the_step_to_start_from_is_no_progress_of_an_attempt_that_has_not_loaded() -> None:
    attempt = Attempt(6, 1, Start(StartFrom.STEP, 1000), began=1000)
    before = exit_facts.of_checkpoints(SavedCheckpoints(steps=(5000, 1000), attempt=5), attempt, NOW)
    assert (before["progress.advanced"], before["checkpoint.step"]) == (False, 1000)
    after = exit_facts.of_checkpoints(SavedCheckpoints(steps=(1500, 1000), attempt=6), attempt, NOW)
    assert (after["progress.advanced"], after["checkpoint.step"]) == (True, 1500)


def test_of_a_program_that_keeps_its_files_nobody_knows_what_it_has_saved() -> None:
    attempt, nothing = Attempt(2, 1), SavedCheckpoints()
    facts = exit_facts.of_checkpoints(nothing, attempt, NOW, keeps_files=True)
    assert facts["checkpoint.present"] is False
    assert "progress.advanced" not in facts
    assert exit_facts.of_checkpoints(nothing, attempt, NOW)["progress.advanced"] is False
    old = exit_facts.of_checkpoints(
        SavedCheckpoints(steps=(5,)), Attempt(2, 1, began=5), NOW, keeps_files=True
    )
    assert old["progress.advanced"] is False  # of a contract that it speaks


@pytest.mark.parametrize(
    ("log", "kind", "line"),
    [
        (TRACEBACK + b"ImportError: no such thing\n", "ImportError", "ImportError: no such thing"),
        (TRACEBACK + b"    import x\nKeyboardInterrupt\n", "KeyboardInterrupt", "KeyboardInterrupt"),
        (TRACEBACK + b"  x\na.b.NoData: 3\nwith a note\n\n", "NoData", "a.b.NoData: 3"),
        (
            b"  File \"train.py\", line 3\n    f(\n     ^\nSyntaxError: '(' was never closed\n",
            "SyntaxError",
            "SyntaxError: '(' was never closed",
        ),
        (TRACEBACK + b"NameError: name 'x' is not defined\n" + LAUNCHER, "NameError", None),
        (OF_RANK_1 + b"[rank1]: LookupError: no rows\n", "LookupError", "LookupError: no rows"),
        (OF_RANK_1 + b"[rank1]: ValueError: x\n[rank1]: \n\n", "ValueError", "ValueError: x"),
        (TRACEBACK + b"ValueError: " + b"x" * 9999, "ValueError", "ValueError: " + "x" * 288),
    ],
)
def test_the_exception_that_ended_a_program_is_the_last_line_of_its_traceback(
    log: bytes, kind: str, line: str | None
) -> None:
    found = find_exception(b"step 1\n" + log)
    assert found is not None
    assert found.kind == kind
    assert line is None or found.line == line


@pytest.mark.parametrize("log", [b"", b"ImportError: x\n", b"hello\nDone: 3\n", b"  indented\nlower: x\n"])
def test_a_log_without_a_traceback_names_no_exception(log: bytes) -> None:
    assert find_exception(log) is None
