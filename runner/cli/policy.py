"""``runner policy``: print and check policy files, and show past and simulated decisions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.base.errors import UsageError
from runner.base.readable import readable_duration
from runner.base.textfile import FileError, one_line
from runner.cli.console import complain, complain_of, say, say_json, say_row
from runner.cli.parameters import CommandGroup, as_json, check_ref, check_refs, count_from
from runner.client.client import EVERY, find_or_start

if TYPE_CHECKING:
    from runner.client.types import JobDetail
    from runner.core.policy.explain import Record
    from runner.core.policy.model import Policy
    from runner.core.policy.replay import Replay

FILE = click.Path(path_type=Path)


@click.group(cls=CommandGroup)
def policy() -> None:
    """Check, show, test and simulate policies.

    A policy decides when an attempt ends, hangs or is to be changed. POLICY is a file, or the name of a
    shipped policy.
    """


@policy.command()
@click.argument("policies", nargs=-1, required=True, metavar="POLICY...")
@as_json
def check(policies: tuple[str, ...], *, as_json: bool) -> None:
    """Check policies; each problem is a line FILE:LINE:COLUMN: FIELD: FACT.

    The exit code is 2 if there is a problem.
    """
    codes = [_check(given, as_json=as_json) for given in policies]
    click.get_current_context().exit(max(codes))


@policy.command()
@click.argument("policy_", default="default", metavar="[POLICY]")
@click.option("--merged", is_flag=True, help="Write out what it extends, in the order in which it is asked.")
def show(policy_: str, *, merged: bool) -> None:
    """Print a policy with its comments, to start your own from; the default is "default"."""
    from runner.files.policy.dump import dump_policy
    from runner.files.policy.load import read_policy_source

    found = _policy(policy_)
    if merged:
        say(dump_policy(found).rstrip("\n"))
    else:
        say(read_policy_source(_path(policy_)).decode().rstrip("\n"))


@policy.command()
@click.argument("policy_", metavar="POLICY")
@click.argument("cases", nargs=-1, required=True, type=FILE, metavar="CASES...")
@as_json
def test(policy_: str, cases: tuple[Path, ...], *, as_json: bool) -> None:
    """Run cases against a policy and compare its decisions with the expected ones.

    Each difference is a line FILE:LINE:COLUMN: CASE: FACT. The exit code is 2 if there is a difference.
    """
    found = _policy(policy_)
    codes = [_test(found, path, as_json=as_json) for path in cases]
    click.get_current_context().exit(max(codes))


@policy.command()
@as_json
def facts(*, as_json: bool) -> None:
    """Print the facts that a rule can test.

    Between tabs: name, values, known at (E the end of an attempt, W while it runs, C a change), meaning
    and source.
    """
    from runner.files.policy.fact_table import rows

    for name, values, moments, meaning, source in rows():
        if as_json:
            fact = {"name": name, "values": values, "moments": moments, "meaning": meaning, "source": source}
            say_json(fact)
        else:
            say_row(name, values, moments, meaning, source)


@policy.command()
def schema() -> None:
    """Print the JSON Schema of the policy file, for editors."""
    import json

    from runner.files.policy.schema import policy_schema

    say(json.dumps(policy_schema(), indent=2))


@policy.command()
@click.argument("job", callback=check_ref)
@click.argument("attempt", required=False, callback=count_from(1))
@click.option("--journal", "journals", multiple=True, type=FILE, metavar="FILE",
              help="Records of decisions, one JSON object per line; - is standard input; "
              "default: ask the daemon.")  # fmt: skip
@as_json
def explain(job: str, attempt: int | None, journals: tuple[Path, ...], *, as_json: bool) -> None:
    """Explain the decision about an ATTEMPT of a JOB, by default the last one.

    Each rule is listed as true, false or unknown, with the fact that made it so.
    """
    from runner.files.policy.journal import (
        explain_attempt,
        read_journals,
        select_records,
    )

    records = read_journals(journals) if journals else _decided(job)
    known_as = job if journals else str(records[0]["job"])
    if as_json:
        for record in select_records(records, known_as, attempt):
            say_json(record)
    else:
        say(explain_attempt(records, known_as, attempt))


@policy.command()
@click.argument("jobs", nargs=-1, callback=check_refs, metavar="[JOB...]")
def journal(jobs: tuple[str, ...]) -> None:
    """Print all decisions about jobs as a journal, one JSON object per line, the oldest first.

    Without a JOB, the journal covers all of your jobs. "runner policy simulate" reads it.
    """
    client = find_or_start(complain)
    chosen = jobs or tuple(job["id"] for job in client.jobs(everything=True, mine=True, limit=EVERY))
    records = [record for job in chosen for record in client.decisions(job)]
    for record in sorted(records, key=lambda record: str(record["at"])):
        say_json(record)


def _decided(job: str) -> tuple[Record, ...]:
    """Return the daemon's decisions about a job.

    Raises:
        UsageError: there is no decision yet.
    """
    client = find_or_start(complain)
    records = tuple(client.decisions(job))
    if not records:
        raise UsageError(f"{one_line(job)}: {_undecided(client.job(job))}")
    return records


def _undecided(job: JobDetail) -> str:
    """Return the reason why a job has no decision yet; a decision is made when an attempt ends."""
    if job["state"] != "finished":
        return "nothing has been decided yet; no attempt of it has ended"
    return f"ended without having run: {one_line(job['why'])}; there was nothing to decide; see runner events"


@policy.command()
@click.argument("policy_", metavar="POLICY")
@click.option("--journal", "journals", required=True, multiple=True, type=FILE, metavar="FILE",
              help="A journal; - is standard input.")  # fmt: skip
@as_json
def simulate(policy_: str, journals: tuple[Path, ...], *, as_json: bool) -> None:
    """Replay journals with another policy, and compare its decisions with the recorded ones.

    Each attempt is a line; tabs separate job, attempt, recorded decision, decision of POLICY ("-": it
    would not have made the attempt; "?": unknown after a different decision), rule, seconds lost and
    reason. Summaries go to standard error.
    """
    from runner.files.policy.journal import (
        read_journals,
        replay_to_json,
        simulate_journal,
    )

    for replay in simulate_journal(_policy(policy_), read_journals(journals)):
        if as_json:
            say_json(replay_to_json(replay))
        else:
            _print_replay(replay)


# --- Shared helpers -----------------------------------------------------------------------------------


def _path(given: str) -> Path:
    """Return the file of a policy by name or path; local files take precedence over shipped ones."""
    from runner.files.policy.load import PolicySource

    path, shelf = Path(given), PolicySource()
    if given in shelf.names() and not path.is_file():
        return shelf.path(given)
    if not path.exists() and "/" not in given and "." not in given:
        from runner.files.policy.load import unknown_policy_error

        raise unknown_policy_error(given, shelf)
    return path


def _policy(given: str) -> Policy:
    from runner.files.policy.load import read_policy

    return read_policy(_path(given))


def _check(given: str, *, as_json: bool) -> int:
    """Check one policy, print the result, and return the exit code."""
    from runner.files.policy.job_policy import stored_digest

    try:
        found = _policy(given)
    except FileError as error:
        if not as_json:
            return complain_of(error)
        say_json({"policy": given, "ok": False, "problems": list(error.lines)})
        return error.exit_code
    counted = len(found.on_exit) + len(found.on_watch) + len(found.on_change)
    if as_json:
        kept = {"name": found.name, "digest": stored_digest(found), "rules": counted, "problems": []}
        say_json({"policy": given, "ok": True, **kept})
    else:
        say(f"{one_line(given)}: ok, {counted} rules, digest {stored_digest(found)}")
    return 0


def _test(found: Policy, path: Path, *, as_json: bool) -> int:
    """Test one file of cases, print the result, and return the exit code."""
    from runner.files.policy.cases import read_cases, run_case

    cases = read_cases(path)
    problems = [case.problem(fact) for case in cases for fact in run_case(found, case)]
    lines = [problem.line(path) for problem in problems]
    failed = len({problem.field for problem in problems})
    if as_json:
        say_json({"file": str(path), "cases": len(cases), "failed": failed, "problems": lines})
    else:
        complain(*lines)
        say(f"{one_line(str(path))}: {len(cases) - failed} of {len(cases)} cases are as expected")
    return 2 if problems else 0


def _print_replay(replay: Replay) -> None:
    for turn in replay.steps:
        verdict = turn.action
        said = (str(verdict.verb), verdict.rule, verdict.reason) if verdict else (None, None, None)
        mark = "" if turn.certain else " ?"
        do = f"{said[0]}{mark}" if said[0] else None
        say_row(replay.job, turn.attempt, turn.recorded, do, said[1], f"{turn.unsaved_s:.0f}", said[2])
    recorded, still = replay.unsaved_s
    more = "; it would go on where the journal ends" if replay.continues else ""
    complain(
        f"job {replay.job}: {replay.attempts_made} of {len(replay.steps)} attempts, "
        f"{readable_duration(still)} of {readable_duration(recorded)} of work lost{more}"
    )
