"""The ends of logs as programs of the field write them, and the cause of each."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from runner.agent.attempts.diagnosis import diagnose, find_complaint, find_exception
from runner.core.job.exit_cause import Evidence, explain_exit
from tests.unit.runner.files.test_requirements import few_seconds

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


def each_line(before: str) -> Callable[[str], str]:
    return lambda log: "".join(f"{before}{line}\n" for line in log.splitlines())


WRITTEN: Final[dict[str, Callable[[str], str]]] = {
    "torch": each_line("[rank1]: "),
    "torchrun --tee": each_line("[trainer3]: "),
    "mpirun --tag-output": each_line("[1,3]<stderr>: "),
    "srun --label": each_line("3: "),
    "Ray": each_line("(train pid=41, ip=10.0.0.4) "),
    "Compose": each_line("trainer-1  | "),
    "a terminal": lambda log: log.replace("\n", "\r\n"),
    "colours": lambda log: re.sub("^(.+)$", "\x1b[31m\\1\x1b[0m", log, flags=re.MULTILINE),
    "a warning below": lambda log: (
        f"{log}/x/tracker.py:254: UserWarning: leaked semaphores\n  warnings.warn(\n"
    ),
    "a bar below": lambda log: f"{log}\r  3%|▎         | 30/1000 [00:10<05:12,  3.11it/s]\n",
    "make below": lambda log: f"{log}make: *** [Makefile:3: train] Error 1\n",
    "srun below": lambda log: f"{log}srun: error: node1: task 0: Exited with exit code 1\n",
    "time below": lambda log: f"{log}\nreal\t0m1.2s\nuser\t0m1.1s\nsys\t0m0.1s\n",
    "a log below": lambda log: f"{log}2026-11-27 10:00:00,123 - clearml - INFO - Waiting for uploads\n",
}


@pytest.mark.parametrize("written", WRITTEN)
def test_it_is_the_same_however_it_is_written(written: str) -> None:
    wrong = []
    for name, (code, log, cause) in LOGS.items():
        found = diagnose(WRITTEN[written](log).encode(), code)
        if (found and str(found.cause)) != cause:
            wrong.append(name)
    assert not wrong


def test_a_prefix_of_a_traceback_is_taken_from_all_its_lines() -> None:
    """As that of ``ts``, or of a launcher that nobody has heard of."""
    code, log, cause = LOGS["memory-error"]
    found = diagnose(each_line("Nov 27 10:00:07 ")(log).replace("07", "08", 1).encode(), code)
    assert found is not None
    assert str(found.cause) == cause


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("git-enospc", "fatal: cannot create directory at 'assets/img': No space left on device"),
        ("conda", "CondaHTTPError: HTTP 000 CONNECTION FAILED for url"),
        ("go-flag", "flag provided but not defined: -batchsize"),
        ("hydra-choice", "In 'config': Could not find 'model/restnet'"),
    ],
)
def test_the_line_that_tells_the_cause_is_shown(name: str, said: str) -> None:
    code, log, _ = LOGS[name]
    found = diagnose(log.encode(), code)
    assert found is not None
    assert found.line.startswith(said)


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
    evidence = replace(ended(code), exception=found.line, told=found.cause, hint=found.hint)
    assert explain_exit(evidence)[1].count(said) == 1


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


@pytest.mark.parametrize("words", ["_STATUS_", "grad"])
def test_the_end_of_a_log_of_one_word_is_searched_in_linear_time(words: str) -> None:
    with few_seconds():
        assert diagnose(words.encode() * (2**19 // len(words)), 1) is None
