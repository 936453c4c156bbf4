"""Summary of a failed job for a person: the end of its log, and the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from runner.base.errors import RunnerError
from runner.cli.console import complain, harmless
from runner.cli.formatting import is_saved
from runner.client.log import last_lines

if TYPE_CHECKING:
    from runner.client.client import Client
    from runner.client.types import AttemptResponse, JobDetail

LAST_LINES: Final = 20
LINE_CHARACTERS: Final = 500
"""Of a longer line, the beginning is shown."""

BY_CAUSE: Final = {
    "usage_error": "correct the arguments, and submit it again",
    "not_found": "check the first word of the command, and that the image has this program",
    "not_executable": "make the program executable (chmod +x), or start it by its interpreter;"
    " its owner must be able to enter the directories of both",
    "host_oom": "raise resources.memory (runner run --memory)",
    "device_out_of_memory": "use smaller batches, or a device with more memory (devices.memory)",
    "shared_memory": "raise resources.shm, or use fewer loader processes",
    "disk_full": "make room on the disk, then: runner release {id}",
    "launch_failed": "runner events {id} prints what the engine has said",
}
"""The next step by the cause of the last attempt."""

BY_WORD: Final = {
    " puts it on the path": "submit it again this way",
    " in the code of the job has no module ": "correct the code and submit it again",
    " in the code of the job has no name ": "correct the code and submit it again",
    "its package is ": "submit it again this way",
    "is started as its module: ": "submit it again this way",
    "is the driver's: ": "submit it again this way",
    "packages are asked for before: ": "submit it again this way",
    ", and the job does not get ": "do one of the two, and submit it again",
    "the job has it at ": "name that path, and submit it again",
    " and is left out": "submit it again this way",
    "is not in the code of the job": "check the path of the script: it is relative to the code, of which"
    " runner show {id} names what was left out; then submit it again",
    "the line ends of Windows": "then submit it again",
    "write it without quotes": "submit it again this way",
    "begins with ./": "submit it again this way",
    "a variable is an option": "submit it again this way",
    "is a word of shells": "submit it again this way",
    "write it without sudo": "submit it again this way",
    " does without it": "submit it again this way",
    " reads it, too": "submit it again this way",
    "has no #! line": "submit it again this way",
    "is not in the image": "submit it again this way",
    "is not on the PATH": "name the program by its path, or have it installed; then submit it again",
    "chmod +x": "then submit it again",
    "ModuleNotFoundError": "add the package to the image: runner run --with PACKAGE, or image.requirements",
    "ImportError": "add the package, or another version: runner run --with PACKAGE, or image.requirements",
    "SyntaxError": "correct the code and submit it again",
    "NameError": "correct the code and submit it again",
    "time limit": "runner set {id} --time TIME raises its time limit; then runner restart {id} {begins}",
}
"""The next step by a word in the reason of the job's end."""

RESUME_ARGS: Final = (
    "its checkpoint is kept; in the directory of its code: runner show {id} --file > FILE,"
    " correct checkpoint.resume_args in it, runner apply FILE --job {id} --file-only, runner restart {id}"
)
"""The next step when the arguments that a resumed attempt was given besides are refused."""

CONTINUES: Final = "continues from the newest checkpoint"
BEGINS: Final = "begins again: no checkpoint of it is known"
UNSTARTED: Final = (
    "runner logs --build {id} prints what was built for it; submit it again once that is mended"
)
OTHERWISE: Final = "runner logs {id} prints the whole log, runner restart {id} tries again"
HELD: Final = "runner policy explain {id} says why it is held, runner release {id} lets it go on"


class Failure(NamedTuple):
    """The end of a failed job."""

    attempt: int | None  # whose log this is; None: there is none
    lines: tuple[str, ...]
    next_step: str


def find_failure(client: Client, job: JobDetail, *, with_log: bool = True) -> Failure | None:
    """Return the end of a job that has failed, or is held by its policy; None for any other job."""
    ended = [attempt for attempt in job["attempts"] if attempt["ended_at"]]
    is_held = job["state"] == "held" and bool(ended) and not job["why"].startswith("held by ")
    if job["outcome"] != "failed" and not is_held:
        return None
    last = ended[-1] if ended else None
    lines = _last_lines(client, job["id"], last) if with_log and last is not None else ()
    step = HELD if is_held else _next_step(job, last)
    text = step.format(id=job["id"], begins=CONTINUES if is_saved(job) else BEGINS)
    return Failure(None if last is None else last["number"], lines, text)


def complain_of_failure(client: Client, job: JobDetail, *, with_log: bool = True) -> None:
    """Print the last lines of the log of a failed job, and the next step, to standard error."""
    failure = find_failure(client, job, with_log=with_log)
    if failure is None:
        return
    if failure.lines:
        complain(f"--- the last lines of attempt {failure.attempt} ---", *failure.lines, "---")
    complain(f"{job['name']}: {failure.next_step}")


def _last_lines(client: Client, job_id: str, attempt: AttemptResponse) -> tuple[str, ...]:
    """Return the last lines of the log of an attempt; none if it cannot be read."""
    try:
        found, _ = last_lines(client, job_id, attempt["number"], LAST_LINES)
    except RunnerError:  # somebody else's job, or an attempt without a log
        return ()
    text = found.decode(errors="replace").rstrip()
    return tuple(harmless(line[:LINE_CHARACTERS], keep="\t") for line in text.split("\n")) if text else ()


def _next_step(job: JobDetail, last: AttemptResponse | None) -> str:
    message, cause = ("", "") if last is None else (last["message"] or "", last["cause"] or "")
    if cause == "usage_error" and last is not None and _had_resume_args(job, last):
        return RESUME_ARGS
    said = f"{job['why']} {message}"
    found = next((step for word, step in BY_WORD.items() if word in said), None)
    return found or BY_CAUSE.get(cause, UNSTARTED if last is None else OTHERWISE)


def _had_resume_args(job: JobDetail, last: AttemptResponse) -> bool:
    """Return True if the last attempt was given arguments besides those of the first one."""
    checkpoint = ((job["revision"] or {}).get("job") or {}).get("checkpoint") or {}
    return last["number"] > 1 and is_saved(job) and bool(checkpoint.get("resume_args"))
