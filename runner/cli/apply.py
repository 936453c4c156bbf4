"""``runner apply``, ``runner rollback`` and ``runner revisions``: change the job file of an existing job."""

from __future__ import annotations

import json
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import click

from runner.base.errors import Unavailable, UsageError
from runner.base.readable import readable_duration
from runner.base.textfile import one_line
from runner.cli.console import complain, say, say_json, say_table
from runner.cli.parameters import as_json, check_optional_ref, complete_names, count_from, the_job
from runner.cli.placing import placed
from runner.cli.submit import read
from runner.client.client import file_fields, find_or_start
from runner.client.http import quote_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from runner.client.client import Client

DECLINED: Final = 3
MAX_ID: Final = 20
POLL_S: Final = 0.5
VERIFYING_S: Final = 600.0
"""Time in which the daemon verifies checkpoints before it answers."""

OUTCOMES: Final = {
    "keep": "the running attempt goes on as it is, and the change is declined",
    "store": "the running attempt goes on, and the next start uses the change",
    "resume": "it is stopped, and goes on from its newest checkpoint with the change",
    "restart": "it is stopped, and begins again at step 0 in a new lineage; the old one is kept",
    "decline": "nothing changes",
}

NOTHING_CHANGES: Final = frozenset({"keep", "decline"})

RUNNING: Final = frozenset({"starting", "running", "stopping"})
RESTING: Final = {"held": "release", "finished": "restart"}
"""States in which nothing happens by itself, and the command that begins again."""


def _check_canary(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Return the id of a canary unchanged.

    Raises:
        UsageError: the text cannot be the id of a canary.
    """
    if value is not None and not (value.isascii() and value.isdecimal() and len(value) <= MAX_ID):
        raise UsageError(
            f"--measured: there is no canary {one_line(value)}; its number is what --canary N has said"
        )
    return value


@click.command()
@click.argument("file", metavar="FILE", type=click.Path())
@click.option(
    "--job", metavar="JOB", callback=check_optional_ref, shell_complete=complete_names,
    help="The job to change; by default the newest with the name in the file.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@click.option("--approve", is_flag=True, help="Agree that the change may cost work.")
@click.option(
    "--at-next-start",
    is_flag=True,
    help="Stop nothing for the change; store it for the next start of the job.",
)
@click.option(
    "--file-only",
    is_flag=True,
    help="Keep the code that the job has, and the meaning of paths in its file.",
)
@click.option(
    "--expect", type=click.FloatRange(1, 1000, min_open=True), metavar="X",
    help="Expected speed-up; the change is taken back if it brings less than half of it.",
)  # fmt: skip
@click.option(
    "--canary", "steps", type=click.IntRange(25, 1_000_000), metavar="N",
    help="First measure the change: N steps of it, from a copy of the newest checkpoint.",
)  # fmt: skip
@click.option(
    "--measured",
    metavar="ID",
    callback=_check_canary,
    help="Decide with the results of an earlier canary of this change.",
)
@as_json
def apply(  # noqa: PLR0913  one per option
    file: str,
    *,
    job: str | None,
    dry_run: bool,
    approve: bool,
    at_next_start: bool,
    file_only: bool,
    expect: float | None,
    steps: int | None,
    measured: str | None,
    as_json: bool,
) -> None:
    """Change a job while it runs; FILE is the new version of its job file.

    The command shows the fields that differ with their classes, the measurements, and the decision of
    the policy: decline the change (keep), resume with it, or restart. The exit code is 3 if it is
    declined.
    """
    client = find_or_start(complain)
    body = {**_body(file, job), "canary": measured, "at_next_start": at_next_start, "expect": expect}
    body["file_only"] = file_only
    if steps is not None:
        body["canary"] = _measure(client, {**body, "dry_run": dry_run, "approve": approve}, steps)
    answer = _post(client, "/v1/apply", {**body, "dry_run": dry_run, "approve": approve})
    if as_json:
        say_json(answer)
    else:
        for line in told(answer, dry_run=dry_run):
            say(line)
    if _is_declined(answer):
        click.get_current_context().exit(DECLINED)


def _is_declined(answer: Mapping[str, Any]) -> bool:
    return bool(answer["changes"]) and answer["outcome"] in NOTHING_CHANGES


def _body(file: str, job: str | None) -> dict[str, Any]:
    """Return the fields common to all requests about a change."""
    text = read(file)
    return {**file_fields(placed(file, text), text, file), "job": job}


def _post(client: Client, path: str, body: Mapping[str, object]) -> dict[str, Any]:
    """Return the answer to a request whose timeout leaves time to verify checkpoints."""
    answer = client.ask("POST", path, json.dumps(body).encode(), VERIFYING_S)
    found: dict[str, Any] = json.loads(answer.body)
    return found


def _measure(client: Client, body: Mapping[str, object], steps: int) -> str:
    """Run a canary and return its id once it has been measured.

    Raises:
        Unavailable: the canary measured no rate.
    """
    trial = _post(client, "/v1/canaries", {**body, "steps": steps})
    if trial["parked"]:
        complain("there is no room beside the job: it pauses for its canary, and goes on afterwards")
    complain(f"canary {trial['canary']}: {steps} steps of the change; runner logs -f {trial['canary']}")
    pause, path = Event(), f"/v1/jobs/{quote_path(trial['job'])}/canaries/{quote_path(trial['canary'])}"
    while not trial["finished"]:
        pause.wait(POLL_S)
        trial = client.get(path)
    if trial["rate"] is None:
        raise Unavailable(f"canary {trial['canary']}: no rate: {trial['why']}; runner logs {trial['canary']}")
    return str(trial["canary"])


# --- Output text --------------------------------------------------------------------------------------


def told(answer: Mapping[str, Any], *, dry_run: bool) -> Iterator[str]:
    """Yield the lines that describe a change and its outcome."""
    if not answer["changes"]:
        yield f"{answer['job']['name']}: nothing differs"
        return
    yield from _format_rows(("FIELD", "NOW", "THEN", "CLASS", "WHY"), map(_cells, answer["changes"]))
    same = "the same bits come out" if answer["same_bits"] else "other bits may come out"
    yield f"class {answer['class']}: {same}"
    yield ""
    yield f"checkpoint {_checkpoint(answer['facts'], runs=answer['job']['state'] in RUNNING)}"
    yield from answer["arithmetic"]
    yield ""
    verdict = answer["verdict"]
    rule = f" (rule {verdict['rule']})" if verdict["rule"] else ""
    limit = f" [limit {verdict['limit']}]" if verdict["limit"] else ""
    yield f"{answer['outcome']}{rule}{limit}: {answer['why']}"
    yield _done(answer, dry_run=dry_run)


def _done(answer: Mapping[str, Any], *, dry_run: bool) -> str:
    follows = _follows(answer)
    if dry_run and _is_declined(answer):
        return "dry run: this change is declined; nothing would change"
    if dry_run:
        return f"dry run: nothing was done; without --dry-run: {follows}"
    revision = "" if answer["revision"] is None else f" is at revision {answer['revision']};"
    return f"{answer['job']['name']}{revision or ':'} {follows}"


def _follows(answer: Mapping[str, Any]) -> str:
    """Return the effect of a change on the job as text; only a running job is stopped."""
    job, outcome = answer["job"], answer["outcome"]
    if outcome in NOTHING_CHANGES or job["state"] in RUNNING or job.get("parked"):
        return OUTCOMES[outcome]
    afresh = "at step 0, in a new lineage" if outcome == "restart" else "with the change"
    if job["state"] not in RESTING:
        return f"its next attempt begins {afresh}"
    scratch = " --from scratch" if outcome == "restart" and job["state"] == "finished" else ""
    return f"nothing runs: runner {RESTING[job['state']]} {job['name']}{scratch} begins {afresh}"


def _cells(change: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(change[name] for name in ("field", "before", "after", "class", "why"))


def _checkpoint(facts: Mapping[str, Any], *, runs: bool) -> str:
    if not facts.get("checkpoint.present"):
        saves = runs and facts.get("checkpoint.on_demand")  # true of any job that has nothing to lose
        return "none yet" + ("; it saves when it is asked to stop" if saves else "")
    if not facts.get("checkpoint.valid"):
        return "there are some, and none is valid"
    known: bool | None = facts.get("checkpoint.compatible")
    fits = "" if known is None else "fits the change" if known else "does not fit the change"
    step, age = facts.get("checkpoint.step"), facts.get("checkpoint.age_s")
    of_step = "" if step is None else f"of step {step}"
    parts = filter(None, (of_step, f"{readable_duration(age)} old" if age is not None else "", fits))
    return ", ".join(parts) or "there is one"


def _format_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows as lines below their column names; lines are not limited in width."""
    from runner.cli.table import UNLIMITED, format_table, make_table

    return format_table(make_table(columns, rows), UNLIMITED)


# --- Rollback -----------------------------------------------------------------------------------------


@click.command()
@the_job
@click.argument("revision", metavar="[REVISION]", callback=count_from(1), required=False)
@as_json
def rollback(job: str, revision: int | None, *, as_json: bool) -> None:
    """Return a job to an earlier revision of its file, and to the lineage of that revision.

    REVISION is by default the one before. A running attempt is stopped and goes on from the newest
    checkpoint of that lineage.
    """
    answer = find_or_start(complain).act(job, "rollback", {"revision": revision})
    if as_json:
        say_json(answer)
    elif answer["revision"] is None:
        say(f"{job}: {answer['follows']}: it is as revision {answer['to']} was")
    else:
        say(f"{job}: back to revision {answer['to']}, as revision {answer['revision']}; {answer['follows']}")


@click.command()
@the_job
@as_json
def revisions(job: str, *, as_json: bool) -> None:
    """List the revisions of a job's file, the oldest first."""
    found = find_or_start(complain).get(f"/v1/jobs/{quote_path(job)}/revisions")["revisions"]
    rows = [(f"{each['number']}{' *' if each['present'] else ''}", *_revision(each)) for each in found]
    plain = [(each["number"], "present" if each["present"] else None, *_revision(each)) for each in found]
    columns = ("REVISION", "AT", "BY", "LINEAGE", "WHY")
    say_table(columns, rows, plain, objects=found if as_json else None)


def _revision(each: Mapping[str, Any]) -> tuple[str, ...]:
    lineage = "-" if each["lineage"] is None else str(each["lineage"])
    return each["at"], each["by"], lineage, each["why"]
