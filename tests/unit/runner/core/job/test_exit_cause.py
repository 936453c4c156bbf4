import pytest

from runner.core.job.exit_cause import BEGAN_AGAIN, NO_MATCH, Evidence, explain_exit, find_note, is_complete
from runner.core.policy.causes import ExitCause

NODE_FAILED = ExitCause.NODE_FAILED
NOTHING = {
    "oom_seen": False,
    "engine_error": "",
    "result_cause": None,
    "result_message": "",
    "writes_result": True,
}


def evidence(exit_code: int | None, **known: object) -> Evidence:
    return Evidence(exit_code, **{**NOTHING, **known})  # type: ignore[arg-type]  # a table of keywords


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        pytest.param(evidence(None), "vanished", id="nobody-knows"),
        pytest.param(evidence(0, result_cause="completed"), "completed", id="done"),
        pytest.param(evidence(0), "no_result", id="zero-is-not-believed"),
        pytest.param(evidence(0, writes_result=False), "completed", id="zero-of-a-program"),
        pytest.param(evidence(137, oom_seen=True), "host_oom", id="kernel"),
        pytest.param(evidence(1, oom_seen=True), "host_oom", id="child-of-a-failure"),
        pytest.param(evidence(143, oom_seen=True), "terminated", id="told-to-stop-after-a-child-was-killed"),
        pytest.param(evidence(75, oom_seen=True), "stopped", id="saved-after-a-child-was-killed"),
        pytest.param(evidence(134, oom_seen=True), "host_oom", id="gave-up-for-a-child"),
        pytest.param(evidence(137), "killed", id="from-outside"),
        pytest.param(evidence(143), "terminated", id="sigterm"),
        pytest.param(evidence(139), "segfault", id="sigsegv"),
        pytest.param(evidence(135), "bus_error", id="shm"),
        pytest.param(evidence(98), "device_out_of_memory", id="98"),
        pytest.param(evidence(75), "stopped", id="75"),
        pytest.param(evidence(1, result_cause="disk_full"), "disk_full", id="own-word"),
        pytest.param(evidence(1), "exception", id="plain"),
        pytest.param(evidence(200), "exception", id="no-such-signal"),
        pytest.param(evidence(153), "disk_full", id="sigxfsz"),
        pytest.param(evidence(1, result_cause="completed"), "exception", id="claims-too-much"),
        pytest.param(evidence(None, engine_cause=NODE_FAILED), "node_failed", id="node-lost"),
        pytest.param(evidence(75, engine_cause=NODE_FAILED), "node_failed", id="saved-and-node-lost"),
        pytest.param(evidence(97, engine_cause=NODE_FAILED), "non_finite", id="its-own-word-first"),
        pytest.param(
            evidence(0, result_cause="completed", engine_cause=NODE_FAILED), "completed", id="done-before"
        ),
    ],
)
def test_the_cause_is(what: Evidence, cause: str) -> None:
    found, message = explain_exit(what)
    assert found == cause
    assert "\n" not in message


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("finished at step 8", ""),
        ("stopped early at step 4: no better", "stopped early at step 4: no better"),
    ],
)
def test_a_success_before_the_last_step_says_why(said: str, message: str) -> None:
    done = evidence(0, result_cause="completed", result_message=said)
    assert explain_exit(done) == ("completed", message)


@pytest.mark.parametrize(
    ("code", "known", "cause"),
    [
        (1, {}, "shared_memory"),
        (135, {}, "shared_memory"),
        (1, {"result_cause": "exception"}, "shared_memory"),
        (1, {"result_cause": "disk_full"}, "disk_full"),
        (98, {}, "device_out_of_memory"),
        (143, {}, "terminated"),
        (137, {}, "killed"),
        (0, {"writes_result": False}, "completed"),
        (1, {"oom_seen": True}, "host_oom"),
    ],
)
def test_a_full_shared_memory_is_a_cause_unless_the_end_has_another(
    code: int, known: dict[str, object], cause: str
) -> None:
    assert explain_exit(evidence(code, told=ExitCause.SHARED_MEMORY, **known))[0] == cause


def test_a_full_shared_memory_is_told_with_the_field_to_change() -> None:
    limited = explain_exit(evidence(1, told=ExitCause.SHARED_MEMORY, shared_memory_limit="64MiB"))
    assert limited[1] == "shared memory (/dev/shm) is full; raise resources.shm (64MiB)"
    of_host = explain_exit(evidence(1, told=ExitCause.SHARED_MEMORY))
    assert of_host[1] == "shared memory (/dev/shm of this host) is full; use fewer loader processes"


def test_what_somebody_sent_is_told_and_that_a_child_had_been_killed_beside_it() -> None:
    assert explain_exit(evidence(130)) == ("exception", "exit code 130 (SIGINT)")
    assert explain_exit(evidence(138)) == ("killed", "killed from outside (SIGUSR1)")
    assert explain_exit(evidence(138, result_message="why")) == ("exception", "why")
    told = "terminated from outside (SIGTERM); a child process had been killed for memory"
    assert explain_exit(evidence(143, oom_seen=True)) == ("terminated", told)


def test_a_success_with_a_traceback_at_the_end_of_its_log_is_told() -> None:
    ended = evidence(0, writes_result=False, exception="RuntimeError: worker broke")
    message = "its log ends with a traceback: RuntimeError: worker broke"
    assert explain_exit(ended) == ("completed", message)
    assert explain_exit(evidence(0, result_cause="completed", exception="caught")) == ("completed", "")


@pytest.mark.parametrize(("code", "name"), [(137, "SIGKILL"), (143, "SIGTERM")])
def test_a_signal_after_a_request_to_stop_is_that_of_the_runner(code: int, name: str) -> None:
    _, message = explain_exit(evidence(code, stop_requested=True))
    assert message == f"stopped by the runner ({name})"


def test_a_signal_and_the_last_line_are_named() -> None:
    assert explain_exit(evidence(159)) == ("exception", "exit code 159 (SIGSYS)")
    assert explain_exit(evidence(1, exception="x: lost")) == ("exception", "exit code 1: x: lost")
    aborted = explain_exit(evidence(134, exception="double free"))
    assert aborted == ("aborted", "aborted (SIGABRT): double free")
    assert explain_exit(evidence(137, exception="before")) == ("killed", "killed from outside (SIGKILL)")


def test_the_programs_own_words_explain_its_own_codes() -> None:
    assert explain_exit(evidence(78, result_message="steps: no")) == ("invalid_spec", "steps: no")
    assert explain_exit(evidence(None, engine_error="engine restarted")) == ("vanished", "engine restarted")
    assert explain_exit(evidence(5, engine_error="OCI")) == ("exception", "OCI")


def test_a_program_that_saved_nothing_has_asked_to_be_started_again() -> None:
    assert explain_exit(evidence(75, writes_result=False)) == (
        "stopped",
        "left to be started again (exit 75, or 0 after SIGTERM)",
    )
    assert explain_exit(evidence(75, writes_result=False, result_message="later")) == ("stopped", "later")
    assert explain_exit(evidence(75, writes_result=False, has_checkpoint=True)) == (
        "stopped",
        "stopped after saving",
    )
    assert explain_exit(evidence(75)) == ("stopped", "stopped after saving")


def test_who_was_told_to_stop_and_had_done_the_work_has_completed() -> None:
    assert explain_exit(evidence(75, result_cause="completed")) == ("completed", "")
    assert explain_exit(evidence(75, writes_result=False, result_cause="completed")) == ("completed", "")


def test_exit_0_may_be_no_more_than_the_answer_to_a_wish_to_stop() -> None:
    answer = evidence(0, writes_result=False, stop_requested=True)
    assert (explain_exit(answer)[0], is_complete(answer)) == ("stopped", False)
    assert is_complete(evidence(0, writes_result=False))
    done = evidence(0, writes_result=False, stop_requested=True, result_cause="completed")
    assert (explain_exit(done), is_complete(done)) == (("completed", ""), True)
    other = evidence(0, writes_result=False, stop_requested=True, result_cause="stopped")
    assert (explain_exit(other)[0], is_complete(other)) == ("no_result", False)


def test_a_code_that_a_program_did_not_explain_is_named() -> None:
    assert explain_exit(evidence(78, writes_result=False)) == (
        "invalid_spec",
        "invalid configuration (exit code 78)",
    )
    assert explain_exit(evidence(78)) == ("invalid_spec", "invalid configuration")


def test_a_program_that_was_killed_for_memory_is_told_the_setting_and_its_size() -> None:
    said = explain_exit(evidence(137, oom_seen=True, writes_result=False, memory_limit="128MiB"))
    assert said == ("host_oom", "the kernel killed a process; raise resources.memory (128MiB)")
    trained = explain_exit(evidence(137, oom_seen=True, memory_limit="128MiB"))
    assert trained == ("host_oom", "the kernel killed a process for memory (resources.memory)")


def test_success_with_a_killed_child_says_so() -> None:
    what = evidence(0, result_cause="completed", oom_seen=True)
    assert is_complete(what)
    assert explain_exit(what) == ("completed", "a child process was killed for memory")


def test_an_attempt_that_was_stopped_before_its_program_started_has_not_vanished() -> None:
    assert explain_exit(evidence(None, never_started=True))[0] == "not_started"
    assert explain_exit(evidence(None))[0] == "vanished"


def test_of_several_processes_the_message_names_the_one_that_decided_the_end() -> None:
    cause, message = explain_exit(evidence(137, rank=1, processes=4))
    assert cause == ExitCause.KILLED
    assert message == "rank 1 of 4: killed from outside (SIGKILL)"
    assert explain_exit(evidence(0, result_cause="completed", rank=1, processes=4))[1] == ""


def test_the_node_and_the_device_of_that_process_are_told_and_what_its_launcher_has_seen() -> None:
    stopped = "rank 0 of 4 on node1 had been stopped (SIGSTOP) for 9 s"
    where = {"rank": 1, "processes": 4, "node": "node2", "device": "GPU 3", "note": stopped}
    assert explain_exit(evidence(95, **where))[1].startswith("rank 1 of 4 on node2 (GPU 3): a process of")
    assert explain_exit(evidence(143, **where))[1].endswith(f"(SIGTERM); {stopped}")
    assert explain_exit(evidence(75, note=stopped)) == ("stopped", f"stopped after saving; {stopped}")
    assert explain_exit(evidence(0, result_cause="completed", note=stopped))[1] == ""


@pytest.mark.parametrize("note", [NO_MATCH, BEGAN_AGAIN])
def test_what_a_message_says_of_checkpoints_is_found(note: str) -> None:
    assert find_note(f"exit code 1; {note}x") == f"{note}x"
    assert find_note("exit code 1") == ""
