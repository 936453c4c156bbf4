import json
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.base.textfile import FileError
from runner.core.policy.facts import Facts
from runner.files.policy.journal import (
    explain_attempt,
    parse_journal,
    read_journals,
    replay_to_json,
    simulate_journal,
)
from runner.files.policy.load import load_named_policy
from tests.unit.runner.core.policy.test_records import POLICY, journal

OOM: Facts = {"oom.device": True, "phase": "train", "cause": "device_out_of_memory", "device.xid": (13,)}
PATH = Path("journal.jsonl")
HALVED = "resume from the newest checkpoint with micro-batch halve: device out of memory in train"


def text(*ends: Facts, job: str = "7") -> str:
    return "".join(json.dumps(kept) + "\n" for kept in journal(POLICY, *ends, job=job))


def test_every_line_is_a_record() -> None:
    records = parse_journal(text(OOM, OOM) + "\n", PATH)
    assert [kept["attempt"] for kept in records] == [1, 2]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Expecting property name"),
        ("[]", "list indices must be integers"),
        ("{}", "'record' is missing"),
        ('{"record": 2}', "version 2, not 1"),
        ('{"record": 1}', "'job' is missing"),
    ],
)
def test_what_is_no_record_is_told_with_its_line(line: str, said: str) -> None:
    with pytest.raises(FileError, match=r"journal\.jsonl:2:1: is not a record of a decision: ") as caught:
        parse_journal(f"\n{line}\n", PATH)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"facts": {"moon": 1}},
        {"facts": {"exit.class": "sucess"}},
        {"moment": "noon"},
        {"at": "yesterday"},
        {"rules": [{}]},
        {"verdict": {}},
    ],
)
def test_a_record_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    kept = {**journal(POLICY, OOM)[0], **wrong}
    with pytest.raises(FileError, match=r"journal\.jsonl:1:1: is not a record of a decision"):
        parse_journal(json.dumps(kept), PATH)


def test_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    for job in "ab":
        (tmp_path / job).write_text(text(OOM, job=job))
    assert [kept["job"] for kept in read_journals([tmp_path / "a", tmp_path / "b"])] == [
        "a",
        "b",
    ]


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    for name, said in (("none", "cannot be read: No such file"), ("latin", "is not UTF-8 text")):
        with pytest.raises(FileError, match=said):
            read_journals([tmp_path / name])


def test_an_explanation_is_of_the_last_attempt_unless_one_is_named() -> None:
    records = parse_journal(text(OOM, OOM), PATH)
    assert explain_attempt(records, "7", None).startswith("7, attempt 2, on_exit: ")
    assert explain_attempt(records, "7", 1).startswith("7, attempt 1, on_exit: ")


def test_what_is_not_in_the_journal_cannot_be_explained() -> None:
    records = parse_journal(text(OOM), PATH)
    with pytest.raises(
        UsageError, match=r'job "8": the journal has no decision about it; it has decisions about 7$'
    ):
        explain_attempt(records, "8", None)
    with pytest.raises(UsageError, match=r"it has decisions about no job$"):
        explain_attempt((), "8", None)
    many = [{**records[0], "job": str(number)} for number in range(6)]
    with pytest.raises(UsageError, match=r"it has decisions about 0, 1, 2, 3, 4, \.\.\.$"):
        explain_attempt(many, "8", None)
    with pytest.raises(UsageError, match='job "7": no decision about attempt 2; there are 1'):
        explain_attempt(records, "7", 2)


def test_decisions_about_what_runs_are_not_replayed() -> None:
    watched = {**journal(POLICY, {})[0], "moment": "watch", "facts": {"phase": "train"}}
    records = parse_journal(json.dumps(watched), PATH)
    assert simulate_journal(load_named_policy("strict"), records) == ()


def test_every_job_of_a_journal_is_simulated_by_itself() -> None:
    records = parse_journal(text(OOM, OOM, job="a") + text(OOM, job="b"), PATH)
    first, second = simulate_journal(load_named_policy("strict"), records)
    assert replay_to_json(first) == {
        "job": "a",
        "attempts": 2,
        "attempts_made": 1,
        "lost_s": 7200.0,
        "lost_s_made": 3600.0,
        "goes_on": False,
        "turns": [
            {
                "attempt": 1,
                "recorded": "resume",
                "reason": HALVED,
                "lost_s": 3600.0,
                "verdict": {
                    "do": "hold",
                    "rule": "oom-train",
                    "reason": "hold: device out of memory in train",
                },
                "certain": True,
            },
            {
                "attempt": 2,
                "recorded": "resume",
                "reason": HALVED,
                "lost_s": 3600.0,
                "verdict": None,
                "certain": False,
            },
        ],
    }
    assert second.job == "b"
