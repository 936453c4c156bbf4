"""The attempts of a host without images, files or programs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from jobs.contract import RunPaths
from runner.agent.interface import ExitFindings, PinnedPolicy, PreparedLaunch, ProgressProbe, QueueTerms
from runner.agent.ports import RunDirectory
from runner.base.errors import Refused, Unavailable
from runner.core.job.attempt import Attempt, AttemptEnd
from runner.core.job.exit_cause import Evidence, explain_exit, is_complete
from runner.core.policy.causes import ExitCause
from runner.core.policy.digest import compute_digest
from runner.core.policy.facts import FactValue
from runner.core.policy.model import Policy
from runner.core.ports.checkpoints import SavedCheckpoints
from runner.core.ports.devices import Device
from runner.core.ports.executor import Gone, Key, LaunchRequest, Limits
from runner.core.ports.images import BuildFailed
from runner.core.ports.network import NetworkState
from runner.core.ports.store import DecisionRow, JobRow
from runner.core.ports.users import Owner
from runner.core.scheduler.snapshot import ResourceRequest
from runner.files.policy.load import load_named_policy

T = TypeVar("T")


@cache
def pinned(policy: Policy) -> PinnedPolicy:
    return PinnedPolicy(policy, compute_digest(policy))


@cache
def steady() -> Policy:
    """Return the default policy without chance: every wait is known beforehand."""
    policy = load_named_policy("default")
    return replace(policy, backoff=replace(policy.backoff, jitter=0))


@dataclass
class FakeAttempts:
    """Satisfies ``runner.agent.interface.Agent``."""

    instance: str
    needs_of: dict[str, ResourceRequest] = field(default_factory=dict)
    terms_of: dict[str, QueueTerms] = field(default_factory=dict)
    build_queue: int = 0
    build_error: str | None = None
    engine_down: bool = False
    mistake: Exception | None = None  # raised by whatever is asked for next
    launch_mistake: BaseException | None = None  # raised by whatever is to be launched
    locked: set[tuple[str, int]] = field(default_factory=set)  # lineages, by job
    there: dict[str, tuple[int, int]] = field(default_factory=dict)  # attempts and lineages on the disk
    steps: dict[str, int | None] = field(default_factory=dict)  # newest checkpoint by job
    facts: dict[str, dict[str, FactValue]] = field(default_factory=dict)  # more of them, by job
    policies: dict[str, Policy] = field(default_factory=dict)  # by job; else the default one
    probes: dict[str, ProgressProbe | Exception] = field(default_factory=dict)
    full_disks: dict[str, str] = field(default_factory=dict)  # why a job could not save
    retired: list[str] = field(default_factory=list)
    kept: list[DecisionRow] = field(default_factory=list)
    shown: list[tuple[str, int, str]] = field(default_factory=list)  # on terminals

    def needs(self, row: JobRow) -> ResourceRequest:
        return self.needs_of.get(row.job.id, ResourceRequest(1.0, 1024**3))

    def terms(self, row: JobRow) -> QueueTerms:
        return self.terms_of.get(row.job.id, QueueTerms())

    def prepare_image(self, row: JobRow) -> str:
        self._err()
        if self.engine_down:
            raise Unavailable("the engine does not answer")
        if self.build_error:
            raise BuildFailed(self.build_error)
        self.build_queue += 1
        return f"img-{row.name}"

    def prepare_launch(
        self, row: JobRow, attempt: Attempt, image: str, devices: tuple[Device, ...]
    ) -> PreparedLaunch:
        if self.launch_mistake is not None:
            raise self.launch_mistake
        return PreparedLaunch(
            LaunchRequest(
                key=Key(self.instance, row.job.id, attempt.number),
                job_name=row.name,
                owner=row.owner,
                image=image,
                argv=("train", row.job.id),
                run_dir=Path("/nowhere"),
                log=Path("/nowhere/attempts/1/log.txt"),
                limits=Limits(1.0, 1024**3),
                devices=devices,
            )
        )

    def highest_numbers(self, row: JobRow) -> tuple[int, int]:
        return self.there.get(row.job.id, (0, 0))

    def is_lineage_locked(self, row: JobRow, attempt: Attempt) -> bool:
        return (row.job.id, attempt.lineage) in self.locked

    def release_launch(self, row: JobRow) -> None:
        """Nothing is held for a launch."""

    def policy(self, row: JobRow) -> PinnedPolicy:
        return pinned(self.policies.get(row.job.id, steady()))

    def examine(self, row: JobRow, attempt: Attempt, gone: Gone) -> ExitFindings:
        self._err()
        said = "completed" if gone.exit_code == 0 else None
        ended_by = None if gone.reason is None else ExitCause(gone.reason)
        evidence = Evidence(
            gone.exit_code, gone.oom_seen, gone.error, said, "", writes_result=True, engine_cause=ended_by
        )
        cause, message = explain_exit(evidence)
        step = self.steps.get(row.job.id)
        ended = AttemptEnd(
            gone.exit_code, cause, message, completed=is_complete(evidence), checkpoint_step=step
        )
        facts: dict[str, FactValue] = {
            "exit.class": "success" if ended.completed else "exception",
            "cause": cause,
            "root": cause,
            "checkpoint.present": step is not None,
            "checkpoint.valid": step is not None,
            "progress.advanced": (step or 0) > (attempt.began or 0),
            **({} if gone.exit_code is None else {"exit.code": gone.exit_code}),
            **({} if step is None else {"checkpoint.step": step}),
            **({} if gone.reason is None else {"engine.ended": str(gone.reason)}),
            **self.facts.get(row.job.id, {}),
        }
        return ExitFindings(ended, self.policy(row), facts, () if step is None else (step,), "same")

    def probe(self, row: JobRow, attempt: Attempt) -> ProgressProbe:
        del attempt
        self._err()
        found = self.probes.get(row.job.id, ProgressProbe())
        if isinstance(found, Exception):
            raise found
        return found

    def save_decision(self, row: JobRow, decision: DecisionRow) -> None:
        assert row.job.id == decision.job_id
        self.kept.append(decision)

    def has_decision(self, row: JobRow, decision: DecisionRow) -> bool:
        assert row.job.id == decision.job_id
        return decision in self.kept

    def lacks_room_to_save(self, row: JobRow, attempt: Attempt) -> str:
        del attempt
        return self.full_disks.get(row.job.id, "")

    def tell_terminals(self, row: JobRow, attempt: Attempt, text: str) -> None:
        self.shown.append((row.job.id, attempt.number, text))

    def limit_log(self, row: JobRow, attempt: Attempt) -> None:
        del row, attempt
        self._err()

    def clean_up(self, row: JobRow) -> None:
        self.clean_up_files(row)

    def clean_up_files(self, row: JobRow) -> None:
        self.retired.append(row.job.id)

    def directory(self, row: JobRow) -> RunDirectory:
        return self.open_directory(Path("/nowhere", row.job.id), row.owner)

    def open_directory(self, root: Path, owner: Owner) -> RunDirectory:
        del owner
        raise Refused(f"{root}: this host has no files")

    def paths(self, row: JobRow, attempt: int, lineage: int) -> RunPaths:
        return RunPaths(Path("/nowhere", row.job.id), attempt, lineage)

    def metrics(self, row: JobRow, attempt: int, lineage: int, limit: int) -> bytes:
        del row, attempt, lineage, limit
        return b""

    def network(self, row: JobRow) -> tuple[str, NetworkState]:
        del row
        return "none", NetworkState(holds=True)

    def saved(self, row: JobRow, lineage: int) -> SavedCheckpoints:
        del lineage
        step = self.steps.get(row.job.id)
        return SavedCheckpoints(() if step is None else (step,))

    def run_in_turn(self, row: JobRow, work: Callable[[], T]) -> T:
        del row
        return work()

    def preview_launch(self, row: JobRow, attempt: Attempt, image: str) -> LaunchRequest:
        return self.prepare_launch(row, attempt, image, ()).request

    def spec_json(self, row: JobRow, attempt: Attempt) -> object:
        return {"job": row.job.id, "attempt": attempt.number}

    def stop_verifying(self) -> None:
        """Nothing here takes long."""

    def close(self) -> None:
        """Nothing here takes long."""

    def _err(self) -> None:
        if self.mistake is not None:
            raise self.mistake
