"""The ends of logs as programs of the field write them, and the cause of each."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from runner.agent.attempts.diagnosis import diagnose, find_complaint, find_exception
from runner.core.job.exit_cause import Evidence, explain_exit

ENDS: Final = Path(__file__).with_name("ends_of_logs.txt").read_text(encoding="utf-8")
HEAD: Final = re.compile(r"^=== (.+): exit (\d+): (\w+)\n", re.MULTILINE)
NAMES, CODES, CAUSES, TEXTS = (HEAD.split(ENDS)[at::4] for at in (1, 2, 3, 4))
LOGS: Final = {
    name: (int(code), log, None if cause == "nothing" else cause)
    for name, code, cause, log in zip(NAMES, CODES, CAUSES, TEXTS, strict=True)
}


def ended(code: int) -> Evidence:
    """Return the evidence about a program that reports nothing."""
    return Evidence(
        code, oom_seen=False, engine_error="", result_cause=None, result_message="", writes_result=False
    )


@pytest.mark.parametrize("name", LOGS)
def test_the_end_of_a_log_tells_the_cause(name: str) -> None:
    code, log, cause = LOGS[name]
    found = diagnose(b"step 1: loss 2.3\n" * 20 + log.encode(), code)
    assert (None if found is None else str(found.cause)) == cause


@pytest.mark.parametrize("name", [name for name, (_, log, _) in LOGS.items() if "[rank" not in log])
def test_it_is_the_same_on_a_rank(name: str) -> None:
    code, log, cause = LOGS[name]
    lines = "".join(f"[rank1]: {line}\n" for line in log.splitlines())
    found = diagnose(lines.encode(), code)
    assert (None if found is None else str(found.cause)) == cause


def test_the_message_has_the_hint_and_the_exception() -> None:
    code, log, _ = LOGS["enospc"]
    told, raised_last = diagnose(log.encode(), code), find_exception(log.encode())
    assert told is not None
    assert raised_last is not None
    evidence = replace(ended(code), exception=raised_last.line, told=told.cause, hint=told.hint)
    assert explain_exit(evidence) == (
        "disk_full",
        "a disk or a quota is full: OSError: [Errno 28] No space left on device",
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("argparse-unknown", "error: unrecognized arguments: "),
        ("click", "No such option"),
        ("typer", "No such option"),
        ("fire", "ERROR: Could not consume arg"),
    ],
)
def test_a_refused_argument_is_named(name: str, said: str) -> None:
    code, log, _ = LOGS[name]
    found = diagnose(log.encode(), code)
    assert found is not None
    assert found.hint.startswith("the program refuses its arguments: ")
    assert said in found.hint
    assert not {"│", "\n"} & set(found.hint)


@pytest.mark.parametrize(("code", "cause"), [(137, "killed"), (143, "terminated"), (139, "segfault")])
def test_a_signal_is_the_cause_of_its_own(code: int, cause: str) -> None:
    assert explain_exit(ended(code))[0] == cause


def test_a_file_that_is_no_checkpoint_is_not_to_be_loaded_without_care() -> None:
    """As torch says of a pointer of Git LFS."""
    log = b"""Traceback (most recent call last):
  File "/code/train.py", line 4, in <module>
_pickle.UnpicklingError: Weights only load failed. Re-running `torch.load` with `weights_only` set to `False`
Please file an issue with the following: WeightsUnpickler error:

Unsupported operand 118
"""
    found = diagnose(log, 1)
    assert found is not None
    assert (str(found.cause), "weights_only" in found.hint) == ("checkpoint_unreadable", False)
    assert "git lfs pull" in found.hint


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (b"step 3: loss 2\ndouble free or corruption (!prev)\n", "double free or corruption (!prev)"),
        (b"terminate called\n  what():  std::bad_alloc\n\n", "what():  std::bad_alloc"),
        (b"train: cannot open config.ini\nbye\n", "train: cannot open config.ini"),
        (b"error: lost\nstep 4\nfree\n", ""),  # it went on
        (
            b"panic: no index\n\ngoroutine 1:\nmain.main()\n\t/x.go:8 +0x1d\nexit status 2\n",
            "panic: no index",
        ),
        (b"step 3: errorless\n", ""),
        (b"step 3: loss 2.3\n", ""),
        (b"Traceback (most recent call last):\n  x\nKeyError: 'a'\nerror: lost\n", ""),
        (b"", ""),
    ],
)
def test_the_last_line_that_says_what_went_wrong_is_found(log: bytes, said: str) -> None:
    assert find_complaint(log) == said
