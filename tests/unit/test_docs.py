"""Statements of the pages under ``docs``, compared with what the code does."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import import_module
from itertools import product
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from jobs import contract
from runner.adapters import launch as attempt
from runner.adapters.docker import hardening as hardened
from runner.adapters.docker.executor import DockerExecutor
from runner.adapters.process.executor import ProcessExecutor, ProcessSettings
from runner.agent.attempts import diagnosis
from runner.agent.attempts.prepare import CONTAINER_SCRATCH
from runner.base.retry import RETRY_S
from runner.cli.main import EXIT_CODES
from runner.core.job import exit_cause as causes
from runner.core.job.attempt import Allocation, Attempt, AttemptEnd, Start
from runner.core.job.commands import Command
from runner.core.job.events import (
    CancelRequested,
    DeadlinePassed,
    Event,
    Exited,
    GracePassed,
    HoldRequested,
    HostFailed,
    ImageFailed,
    ImageMissing,
    ImageReady,
    Launched,
    LaunchFailed,
    LivenessFailed,
    Placed,
    PreemptRequested,
    PreparationRefused,
    ReleaseRequested,
    RestartRequested,
    RevisionApplied,
    SwitchCalledOff,
)
from runner.core.job.lifecycle import IllegalTransition, advance
from runner.core.job.model import Job
from runner.core.job.states import (
    Finished,
    Held,
    Outcome,
    Preparing,
    Queued,
    Running,
    Starting,
    State,
    Stopping,
    StopReason,
)
from runner.core.policy.history import History
from runner.core.policy.model import Verb
from runner.core.ports.executor import EndReason, Key, LaunchRequest, Limits
from runner.core.ports.users import Owner
from runner.files.field_checks import REFUSED_VARIABLES
from runner.files.policy.load import load_named_policy
from runner.files.profiles.environment import build_environment
from runner.files.settings.model import Settings
from tests.fakes.daemon import decisions as rulings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "provenance").glob("*.md")])


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def table(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    below = re.split(rf"^#+ {re.escape(heading)}$", text, maxsplit=1, flags=re.MULTILINE)[1]
    (lines,) = re.findall(r"\A(?:(?!^#).)*?((?:^\|[^\n]*\n)+)", below, re.MULTILINE | re.DOTALL)
    rows = [re.split(r"(?<!\\)\|", line.strip())[1:-1] for line in lines.splitlines()]
    return [[cell.strip().replace("\\|", "|") for cell in row] for row in rows[2:]]


def words(cell: str) -> set[str]:
    """Return the texts between backquotes."""
    return set(re.findall(r"`([^`]+)`", cell))


# --- every page


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            target, _, anchor = link.partition("#")
            found = (path.parent / target).resolve() if target else path
            assert found.exists(), link
            assert not anchor or anchor in anchors(found), link


def test_every_page_is_one_or_two_clicks_from_the_start_page() -> None:
    reached = {DOCS / "index.md"}
    for _ in range(2):
        reached |= {
            (path.parent / link).resolve()
            for path in reached
            for link in re.findall(r"\]\(([^)\s#:]+\.md)", path.read_text(encoding="utf-8"))
        }
    assert sorted(set(DOCS.rglob("*.md")) - reached) == []


# --- lifecycle.md and causes.md

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
FIRST = Attempt(1, 1)
DIED = AttemptEnd(1, "exception", "boom")
DONE = AttemptEnd(0, "completed", completed=True)
RULINGS = (rulings.AGAIN, rulings.ENOUGH, rulings.WAIT)

STATES: tuple[State, ...] = (
    Preparing(NOW),
    Queued(NOW, "img"),
    Starting(NOW, "img", FIRST, Allocation()),
    Running(NOW, "img", FIRST, Allocation()),
    *(Stopping(NOW, "img", FIRST, Allocation(), reason, LATER) for reason in StopReason),
    Stopping(NOW, "img", FIRST, Allocation(), StopReason.CANCELLED, LATER, killed=True),
    Stopping(NOW, "img", FIRST, Allocation(), StopReason.PREEMPTION, LATER, started=NOW),
    Held(NOW, "why"),
    Finished(NOW, Outcome.FAILED, "why"),
)
EVENTS: tuple[Event, ...] = (
    ImageReady(LATER, "img"),
    ImageFailed(LATER, "no"),
    PreparationRefused(LATER, "no"),
    ImageMissing(LATER),
    HostFailed(LATER, "no driver"),
    Placed(LATER, Allocation()),
    Launched(LATER),
    *(LaunchFailed(LATER, "no", ruling) for ruling in RULINGS),
    CancelRequested(LATER, "ann"),
    RestartRequested(LATER, "ann", Start()),
    HoldRequested(LATER, "ann"),
    ReleaseRequested(LATER, "ann"),
    *(
        RevisionApplied(
            LATER, "ann", 2, "{}", verb, "why", History(), timedelta(), None, 20, other_image=other_image
        )
        for verb, other_image in ((Verb.KEEP, False), (Verb.RESUME, False), (Verb.KEEP, True))
    ),
    PreemptRequested(LATER, "9", "preempted for job 9"),
    SwitchCalledOff(LATER, 1, "job 9 has ended"),
    LivenessFailed(LATER, 1, "stalled", "silent"),
    DeadlinePassed(LATER),
    GracePassed(LATER),
    *(Exited(LATER, 1, DIED, ruling) for ruling in RULINGS),
    Exited(LATER, 1, DONE, rulings.DONE),
)
JOB = Job("1", STATES[0], attempts=1)


def possible() -> Mapping[tuple[str, str], set[str]]:
    """Return the next states of every legal pair of state and event, asked of ``advance``."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for state, event in product(STATES, EVENTS):
        try:
            after, _ = advance(replace(JOB, state=state), event)
        except IllegalTransition:
            continue
        found[state.kind, event.kind].add(after.state.kind)
    return dict(found)


def test_the_samples_leave_no_state_and_no_event_out() -> None:
    assert {type(state) for state in STATES} == set(get_args(State))
    assert {type(event) for event in EVENTS} == set(get_args(Event))


def test_the_diagram_shows_the_transitions_that_advance_allows() -> None:
    (diagram,) = re.findall(r"```mermaid\n(stateDiagram-v2.*?)```", page("explanation/lifecycle"), re.DOTALL)
    drawn = {
        (before, event, after)
        for before, after, events in re.findall(r"^ *(\w+) --> (\w+): (.+)$", diagram, re.MULTILINE)
        for event in re.split(r"[,\s]+", events.strip())
    }
    legal = {(before, event, after) for (before, event), states in possible().items() for after in states}
    assert drawn == {edge for edge in legal if edge[0] != edge[2]}


def test_the_states_and_reasons_are_all_explained() -> None:
    text = page("explanation/lifecycle")
    assert {row[0].strip("`") for row in table(text, "States")} == {state.kind for state in STATES}
    assert {row[0].strip("`") for row in table(text, "Events")} == {event.kind for event in EVENTS}
    assert {row[0].strip("`") for row in table(text, "Commands")} == {
        kind.__name__ for kind in get_args(Command)
    }
    missing = [word for kind in (StopReason, Outcome) for word in kind if f"`{word}`" not in text]
    assert missing == []


def explained() -> set[str]:
    """Return every cause that the host can name, whatever an attempt leaves behind."""
    said = [None, *map(str, contract.Cause)]
    codes = [None, *range(256)]
    return {
        causes.explain_exit(
            causes.Evidence(code, oom, "", word, "", writes_result=True, told=told),
        )[0]
        for code, oom, word, told in product(codes, (False, True), said, (None, *diagnosis.CAUSES))
    } | {"launch_failed", "not_started", *map(str, EndReason)}  # of lifecycle, store, and engine


def test_the_vocabulary_of_causes_is_complete() -> None:
    rows = table(page("explanation/causes"), "Causes")
    assert {row[0].strip("`") for row in rows} == explained()
    codes = {cause: code for code, (cause, _) in causes.BY_CODE.items()}
    codes |= {cause: 128 + number for number, (cause, _) in causes.BY_SIGNAL.items()}
    told = {row[0].strip("`"): row[1] for row in rows}
    assert [cause for cause, code in codes.items() if f"exit {code}" not in told[cause]] == []


def test_the_ceilings_and_waits_are_those_of_the_default_policy() -> None:
    told = {row[0].strip("`"): row[1].strip("`") for row in table(page("explanation/causes"), "Limits")}
    policy = load_named_policy("default")
    ceilings, backoff = policy.ceilings, policy.backoff
    assert told == {
        "retry.max_attempts": str(ceilings.attempts),
        "retry.no_progress": str(ceilings.no_progress),
        "retry.backoff": f"{backoff.first.total_seconds():g}s",
        "retry.backoff_max": f"{backoff.max.total_seconds() / 60:g}m",
    }


# --- contract.md

REPORTS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("spec.json", contract.AttemptSpec),
    ("status.json", contract.Status),
    ("result.json", contract.Result),
    ("effective.json", contract.Effective),
    ("manifest.json", contract.Manifest),
)


@pytest.mark.parametrize(("heading", "model"), REPORTS)
def test_the_contract_tells_every_field_of_a_file(heading: str, model: type[BaseModel]) -> None:
    told = {row[0].strip("`") for row in table(page("reference/contract"), heading)}
    assert told == set(model.model_fields)


def test_the_contract_tells_every_exit_code() -> None:
    told = {(int(row[0]), row[1].strip("`")) for row in table(page("reference/contract"), "Exit codes")}
    assert told == {(code.value, code.name) for code in contract.ExitCode}


@pytest.mark.parametrize("kind", [contract.Phase, contract.Cause])
def test_the_contract_tells_every_word_that_a_report_may_use(kind: type[StrEnum]) -> None:
    text = page("reference/contract")
    assert [word for word in kind if f"`{word}`" not in text] == []


def test_the_contract_tells_every_limit_of_what_the_host_reads() -> None:
    text = page("reference/contract")
    assert f"{contract.MAX_REPORT_BYTES // 1024} KiB" in text
    assert f"{contract.MAX_MANIFEST_BYTES // 1024**2} MiB" in text
    assert f"version is {contract.CONTRACT_VERSION}" in text


REQUEST = LaunchRequest(
    key=Key("abcd", "7", 2),
    job_name="demo",
    owner=Owner(1000, 1000, "ann"),
    image="sha256:1",
    argv=("python", "-P", "-m", "jobs"),
    run_dir=Path("/state/jobs/7"),
    log=Path("/state/jobs/7/attempts/2/log.txt"),
    limits=Limits(2, 2**32),
)


def container(request: LaunchRequest = REQUEST) -> dict[str, Any]:
    made = hardened.engine_arguments(request, hardened.HardeningSettings("abcd"))
    config: dict[str, Any] = made["config"]
    return config


def test_the_contract_tells_what_a_job_finds_in_its_environment(tmp_path: Path) -> None:
    rows = {row[0].strip("`"): row for row in table(page("reference/environment"), "Variables")}
    profile = build_environment(
        contract.Profile(), "cpu", 2, PurePath(contract.JOB_DIR, "cache"), CONTAINER_SCRATCH
    )
    request = replace(REQUEST, environment={name: profile[name] for name in profile if name in rows})
    in_container = dict(variable.split("=", 1) for variable in container(request)["Env"])
    process = ProcessExecutor(ProcessSettings("abcd", tmp_path / "books")).plan(request)["environment"]
    assert isinstance(process, dict)
    assert set(rows) == set(in_container) | set(process)
    told = {name: row[1] != "-" for name, row in rows.items()}
    assert told == {name: name in in_container for name in rows}
    assert {name: row[2] != "-" for name, row in rows.items()} == {name: name in process for name in rows}
    fixed = {name: row[1].strip("`") for name, row in rows.items() if re.fullmatch(r"`[^`<]+`", row[1])}
    assert fixed == {name: in_container[name] for name in fixed}


# --- operations.md


def test_the_settings_table_is_complete_and_its_defaults_are_true() -> None:
    rows = {row[0].strip("`"): row[1].strip("`") for row in table(page("operate/settings"), "Settings")}
    told = table(page("operate/slurm"), "One daemon for all users")
    slurm = {name: row[1].strip("`") for row in told for name in words(row[0])}
    defaults = Settings().model_dump(mode="json", exclude={"queue"})
    assert "slurm.md#" in rows.pop("slurm")
    assert slurm == {name: json.dumps(value) for name, value in defaults.pop("slurm").items()}
    assert rows == {name: json.dumps(value) for name, value in defaults.items()}


def _without_none(value: object) -> object:
    """Return a mapping without the values that are None."""
    if not isinstance(value, dict):
        return value
    return {key: each for key, each in value.items() if each is not None}


def test_the_table_of_the_queues_settings_is_complete_and_its_defaults_are_true() -> None:
    rows = {row[0].strip("`"): row[1].strip("`") for row in table(page("explanation/quotas"), "Settings")}
    defaults = flat("", Settings().queue.model_dump(mode="json", exclude={"classes"}))
    assert rows == {name: json.dumps(value) for name, value in defaults}
    classes = {row[0].strip("`"): row[1:] for row in table(page("explanation/quotas"), "Classes")}
    told = Settings().queue.model_dump(mode="json", include={"classes"})["classes"]
    assert classes == {
        name: [
            json.dumps(_without_none(value)).strip('"')
            for key, value in each.items()
            if key not in {"users", "groups"}
        ]
        for name, each in told.items()
    }
    assert all(each["users"] is each["groups"] is None for each in told.values())


def flat(prefix: str, section: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield all fields of a section with their paths."""
    for name, value in section.items():
        if isinstance(value, dict) and value:
            yield from flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def test_the_exit_codes_of_the_daemon_are_those_of_every_command() -> None:
    told = {int(row[0]) for row in table(page("operate/operations"), "Exit codes of the daemon")}
    assert told <= set(EXIT_CODES)


def test_the_page_knows_how_often_is_tried_again() -> None:
    assert f"every {RETRY_S:g} s" in page("operate/operations")


# --- security.md


def walls() -> Iterator[tuple[str, object]]:
    """Yield (name, value) of everything that is asked of an engine."""
    config = container()
    for name, value in config.items():
        if name != "HostConfig":
            yield name, value
    yield from config["HostConfig"].items()


def test_the_table_of_walls_is_complete_and_its_fixed_values_are_true() -> None:
    rows = table(page("operate/security-walls"), "The walls of a container")
    told = {name: row[1] for row in rows for name in words(row[0])}
    asked = dict(walls())
    assert set(told) == set(asked)
    literal = {name: cell[1:-1] for name, cell in told.items() if re.fullmatch(r"`[^`<]+`", cell)}
    assert {name: json.loads(value) for name, value in literal.items()} == {
        name: asked[name] for name in literal
    }
    assert len(literal) > 20


def test_a_container_shows_the_refusals_of_the_page() -> None:
    text = page("operate/security-walls")
    for pattern in (attempt.FORBIDDEN_VARIABLES, hardened.IMAGE_FORBIDDEN):
        for name in re.findall(r"`([A-Z_]+)\*?`", text.split("## Environment")[1].split("\n## ")[0]):
            assert pattern.fullmatch(name) or any(
                known.fullmatch(name + "X") or known.fullmatch(name) for known, _ in REFUSED_VARIABLES
            ), name
    assert all(f"`/{name}`" in text for name in ("proc", "sys", "dev", "boot", "etc", "run", "root"))
    assert PurePosixPath("/etc").name in hardened.SYSTEM_DIRS


# --- architecture.md


def named(path: str) -> object:
    """Return the object that a dotted path names, whose module is the longest prefix that can be imported."""
    module, _, attribute = path.rpartition(".")
    found = find_module(module) or named(module)
    return getattr(found, attribute)


def find_module(name: str) -> object | None:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None


def test_every_function_that_the_architecture_names_exists() -> None:
    functions = re.findall(r"`(runner(?:\.\w+){2,})`", page("explanation/architecture"))
    assert len(functions) > 20
    assert all(callable(named(function)) for function in functions)


# --- glossary.md


def test_the_glossary_has_every_word_that_a_user_meets() -> None:
    text = page("reference/glossary")
    met = [
        *Outcome,
        *(state.kind for state in STATES),
        DockerExecutor.kind,
        ProcessExecutor.kind,
    ]
    assert [word for word in met if f"`{word}`" not in text] == []
