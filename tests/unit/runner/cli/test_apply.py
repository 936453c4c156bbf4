"""Output of a change for a person, and the request to the daemon."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from runner.cli.apply import told
from tests.fakes.daemon.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke

CHANGE = {
    "field": "profile.graph_cache",
    "before": "off",
    "after": "memory",
    "class": "B",
    "why": "other speed, same bits",
}
RATE = {"mean": 10.0, "low": 9.0, "high": 11.0}


def answer(**more: object) -> dict[str, Any]:
    known: dict[str, Any] = {
        "job": {"id": "1", "name": "train", "state": "running"},
        "changes": [CHANGE],
        "class": "B",
        "same_bits": True,
        "facts": {"checkpoint.present": True, "checkpoint.valid": True, "checkpoint.step": 40},
        "arithmetic": ["work       60 of 400 steps are done", "best       resume"],
        "verdict": {"verb": "resume", "rule": "faster", "reason": "because", "limit": None},
        "outcome": "resume",
        "why": "because",
        "revision": 2,
    }
    return {**known, **more}


def trial(**more: object) -> dict[str, Any]:
    known = {"job": "1", "canary": "7", "parked": False, "finished": False, "why": "", "rate": None}
    return {**known, **more}


def test_a_change_is_shown_field_by_field_with_its_arithmetic_and_what_came_of_it(
    api: FakeApi, invoke: Invoke, job_file: Path
) -> None:
    api.changes["apply"] = [answer()]
    result = invoke("apply", str(job_file))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "FIELD                NOW  THEN    CLASS  WHY",
        "profile.graph_cache  off  memory  B      other speed, same bits",
        "class B: the same bits come out",
        "",
        "checkpoint of step 40",
        "work       60 of 400 steps are done",
        "best       resume",
        "",
        "resume (rule faster): because",
        "train is at revision 2; it is stopped, and goes on from its newest checkpoint with the change",
    ]
    [(method, path, body)] = api.asked
    assert (method, path) == ("POST", "/v1/apply")
    assert body is not None
    assert b64decode(body["text_b64"]) == b"name: train\n"
    assert (body["path"], body["dry_run"], body["approve"], body["canary"]) == (
        str(job_file),
        False,
        False,
        None,
    )


def test_a_dry_run_says_what_would_be_done(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    api.changes["apply"] = [answer(revision=None)]
    result = invoke("apply", str(job_file), "--dry-run", "--approve", "--job", "train")
    assert "dry run: nothing was done; without --dry-run: it is stopped" in result.stdout
    assert api.asked[-1][2] is not None
    assert {name: api.asked[-1][2][name] for name in ("dry_run", "approve", "job")} == {
        "dry_run": True,
        "approve": True,
        "job": "train",
    }


def test_what_the_policy_declines_is_exit_code_3(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    api.changes["apply"] = [
        answer(outcome="decline", revision=None),
        answer(outcome="decline", revision=None),
    ]
    result = invoke("apply", str(job_file))
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (3, "train: nothing changes")
    assert invoke("apply", "--json", str(job_file)).exit_code == 3


def test_a_change_for_which_nothing_is_stopped_is_exit_code_3_unless_it_is_stored(
    api: FakeApi, invoke: Invoke, job_file: Path
) -> None:
    api.changes["apply"] = [answer(outcome="keep", revision=None), answer(outcome="store", revision=2)]
    assert invoke("apply", str(job_file)).exit_code == 3
    assert invoke("apply", str(job_file), "--at-next-start", "--expect", "2").exit_code == 0
    assert [(body["at_next_start"], body["expect"]) for _, _, body in api.asked if body is not None] == [
        (False, None),
        (True, 2.0),
    ]


def test_a_dry_run_of_what_is_declined_says_so(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    api.changes["apply"] = [answer(outcome="decline", revision=None)]
    result = invoke("apply", str(job_file), "--dry-run")
    assert result.stdout.splitlines()[-1] == "dry run: this change is declined; nothing would change"
    assert result.exit_code == 3


@pytest.mark.parametrize("given", ["9" * 23, "e0", ""])
def test_what_can_be_no_canary_is_told_by_the_name_of_the_option(
    api: FakeApi, invoke: Invoke, job_file: Path, given: str
) -> None:
    result = invoke("apply", str(job_file), "--measured", given)
    assert result.exit_code == 2
    assert f"--measured: there is no canary {given}" in result.stderr
    assert api.asked == []


def test_a_canary_is_asked_for_with_the_approval_that_was_given(
    api: FakeApi, invoke: Invoke, job_file: Path
) -> None:
    api.changes["canaries"] = [trial(finished=True, rate=RATE)]
    api.changes["apply"] = [answer()]
    invoke("apply", str(job_file), "--canary", "60", "--approve")
    assert [body["approve"] for _, _, body in api.asked if body is not None] == [True, True]


def test_nothing_that_differs_is_one_line(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    api.changes["apply"] = [answer(changes=[], revision=None, outcome="keep")]
    assert invoke("apply", str(job_file)).stdout == "train: nothing differs\n"


def test_a_canary_is_waited_for_and_its_number_goes_with_the_change(
    api: FakeApi, invoke: Invoke, job_file: Path
) -> None:
    api.changes["canaries"] = [trial(parked=True), trial(), trial(finished=True, rate=RATE)]
    api.changes["apply"] = [answer()]
    result = invoke("apply", str(job_file), "--canary", "60", "--json")
    assert json.loads(result.stdout)["revision"] == 2
    assert "it pauses for its canary" in result.stderr
    assert "canary 7: 60 steps of the change" in result.stderr
    assert [path for _, path, _ in api.asked] == [
        "/v1/canaries",
        "/v1/jobs/1/canaries/7",
        "/v1/jobs/1/canaries/7",
        "/v1/apply",
    ]
    assert api.asked[-1][2] is not None
    assert api.asked[-1][2]["canary"] == "7"


def test_a_canary_without_a_rate_ends_the_command(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    api.changes["canaries"] = [trial(finished=True, why="the canary ended after 0 steps")]
    result = invoke("apply", str(job_file), "--canary", "60")
    assert result.exit_code == 4
    assert "canary 7: no rate: the canary ended after 0 steps; runner logs 7" in result.stderr


def test_an_earlier_canary_is_named(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    api.changes["apply"] = [answer()]
    invoke("apply", str(job_file), "--measured", "7")
    assert api.asked[-1][2] is not None
    assert api.asked[-1][2]["canary"] == "7"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"checkpoint.present": False}, "checkpoint none yet"),
        (
            {"checkpoint.present": False, "checkpoint.on_demand": True},
            "checkpoint none yet; it saves when it is asked to stop",
        ),
        (
            {"checkpoint.present": True, "checkpoint.valid": False},
            "checkpoint there are some, and none is valid",
        ),
        (
            {
                "checkpoint.present": True,
                "checkpoint.valid": True,
                "checkpoint.step": 4,
                "checkpoint.age_s": 9.7,
                "checkpoint.compatible": False,
            },
            "checkpoint of step 4, 9.7s old, does not fit the change",
        ),
        (
            {
                "checkpoint.present": True,
                "checkpoint.valid": True,
                "checkpoint.step": 4,
                "checkpoint.compatible": True,
            },
            "checkpoint of step 4, fits the change",
        ),
        (
            {"checkpoint.present": True, "checkpoint.valid": True, "checkpoint.age_s": 9.7},
            "checkpoint 9.7s old",
        ),
    ],
)
def test_the_state_of_checkpoints_is_one_line(facts: dict[str, object], words: str) -> None:
    assert words in list(told(answer(facts=facts), dry_run=False))


def test_of_a_job_that_does_not_run_nobody_says_that_it_saves_when_it_is_asked() -> None:
    facts = {"checkpoint.present": False, "checkpoint.on_demand": True}  # it has nothing to lose
    job = {"id": "1", "name": "train", "state": "held"}
    assert "checkpoint none yet" in list(told(answer(facts=facts, job=job), dry_run=False))


def test_a_limit_and_other_bits_are_named() -> None:
    verdict = {"verb": "keep", "rule": "", "reason": "no", "limit": "max_swaps"}
    lines = list(told(answer(verdict=verdict, outcome="keep", same_bits=False), dry_run=False))
    assert "class B: other bits may come out" in lines
    assert "keep [limit max_swaps]: because" in lines


@pytest.mark.parametrize(
    ("outcome", "job", "words"),
    [
        (
            "keep",
            {"state": "running"},
            "train: the running attempt goes on as it is, and the change is declined",
        ),
        ("keep", {"state": "held", "parked": True}, "goes on as it is, and the change is declined"),
        (
            "store",
            {"state": "running"},
            "train: the running attempt goes on, and the next start uses the change",
        ),
        ("store", {"state": "queued"}, "train: its next attempt begins with the change"),
        ("store", {"state": "held"}, "train: nothing runs: runner release train begins with the change"),
        ("store", {"state": "finished"}, "train: nothing runs: runner restart train begins with the change"),
        ("restart", {"state": "held"}, "runner release train begins at step 0, in a new lineage"),
        (
            "restart",
            {"state": "finished"},
            "runner restart train --from scratch begins at step 0, in a new lineage",
        ),
        ("decline", {"state": "finished"}, "train: nothing changes"),
    ],
)
def test_what_takes_a_change_up_depends_on_what_the_job_does(
    outcome: str, job: dict[str, object], words: str
) -> None:
    said = answer(outcome=outcome, revision=None, job={"name": "train", **job})
    assert list(told(said, dry_run=False))[-1].endswith(words)


def test_a_rollback_to_what_the_job_is_says_that_nothing_differs(api: FakeApi, invoke: Invoke) -> None:
    api.changes["rollback"] = [{"to": 1, "revision": None, "follows": "nothing differs"}]
    assert invoke("rollback", "train", "1").stdout == "train: nothing differs: it is as revision 1 was\n"


def test_a_rollback_says_where_it_leads(api: FakeApi, invoke: Invoke) -> None:
    back = {"to": 1, "revision": 3, "follows": "with the next attempt"}
    api.changes["rollback"] = [back, back]
    assert (
        invoke("rollback", "train").stdout
        == "train: back to revision 1, as revision 3; with the next attempt\n"
    )
    assert api.asked[-1] == ("POST", "/v1/jobs/train/rollback", {"revision": None})
    assert json.loads(invoke("rollback", "train", "1", "--json").stdout) == back
    assert api.asked[-1][2] == {"revision": 1}


def test_revisions_are_listed_with_the_present_one_marked(api: FakeApi, invoke: Invoke) -> None:
    known = [
        {"number": 1, "at": "T", "by": "ada", "why": "submitted", "lineage": 1, "present": False},
        {"number": 2, "at": "U", "by": "ada", "why": "faster", "lineage": None, "present": True},
    ]
    api.changes["revisions"] = [{"revisions": known}, {"revisions": known}]
    assert (
        invoke("revisions", "train").stdout == "1\t-\tT\tada\t1\tsubmitted\n2\tpresent\tU\tada\t-\tfaster\n"
    )
    assert [json.loads(line) for line in invoke("revisions", "--json", "train").stdout.splitlines()] == known
