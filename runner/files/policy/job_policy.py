"""The policy of a job: found at submission, stored with the job, and tightened by the job file.

A user's own policy file, and the files that it extends, are read with the user's rights. The stored policy
is self-contained, so a later edit of a file does not affect submitted jobs.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from jobs import contract
from runner.base.readable import readable_duration
from runner.base.textfile import FileError, Problem, one_line, quoted
from runner.core.policy.digest import compute_digest
from runner.core.policy.model import Backoff, Ceilings, Policy, Setting, tightest
from runner.files.field_checks import is_policy_path
from runner.files.job.model import JobFile, Retry
from runner.files.job.paths import PathCheck, find_path_problems
from runner.files.policy.dump import dump_policy
from runner.files.policy.load import (
    DEFAULT,
    PolicySource,
    load_named_policy,
    parse_policy,
    read_policy,
    read_policy_source,
)
from runner.files.profiles.load import profile_names
from runner.files.validation import suggest_choice, suggest_profile

_PINNED: Final = Path("policy.yaml")


def find_policy(job: JobFile, base: Path, reader: Callable[[Path], bytes] = read_policy_source) -> Policy:
    """Return the policy that a job names; ``reader`` reads files with the rights of the job's owner.

    Raises:
        FileError: there is none, or it is not valid; problems of a policy file have positions in that file.
    """
    shelf = PolicySource(reader=reader)
    if is_policy_path(job.policy):
        policy = _own(job, base / job.policy, shelf)
    elif shelf.has(job.policy):
        policy = _shipped(job.policy)
    else:
        hint = suggest_choice(job.policy, shelf.names())
        raise _wrong(job, f"there is no policy {quoted(job.policy)}{hint}")
    for fact in _unknown_profiles(policy):
        raise _wrong(job, fact)
    return policy


class JobReferences:
    """Checks the paths and policies that the jobs of one file name; each is checked once."""

    def __init__(
        self, base: Path, check: PathCheck, reader: Callable[[Path], bytes] = read_policy_source
    ) -> None:
        self.base, self.check, self._reader = base, cache(check), reader
        self._asked: set[str] = set()
        self._policies: dict[str, Policy] = {}

    def problems(self, job: JobFile) -> Iterator[Problem]:
        """Yield the problems of the paths of a job and of its choice of a policy."""
        yield from find_path_problems(job, self.base, self.check)
        if job.policy not in self._asked:
            self._asked.add(job.policy)
            try:
                self.policy(job)
            except FileError as error:
                yield from error.problems if error.path == job.origin.path else ()

    def policy(self, job: JobFile) -> Policy:
        """Return the policy of a job; may raise FileError."""
        if job.policy not in self._policies:
            self._policies[job.policy] = find_policy(job, self.base, self._reader)
        return self._policies[job.policy]


def _own(job: JobFile, path: Path, shelf: PolicySource) -> Policy:
    """Return the policy in a user's file; if it cannot be read, that is a problem of the job file."""
    try:
        return read_policy(path, shelf)
    except FileError as error:
        if error.path == path and all(problem.at is None for problem in error.problems):
            fact = f"{one_line(str(path))}: {'; '.join(problem.fact for problem in error.problems)}"
            raise _wrong(job, fact) from error
        raise


@lru_cache(maxsize=64)
def _shipped(name: str) -> Policy:
    """Return a shipped policy; parsing takes 10 ms, so the result is cached."""
    return load_named_policy(name)


def _unknown_profiles(policy: Policy) -> Iterator[str]:
    """Yield a message for each unknown profile in a policy's adjustments."""
    named = [
        (rule.name, adjustment.turn)
        for rule in policy.on_exit
        for adjustment in rule.adjust
        if adjustment.knob is Setting.PROFILE
    ]
    names = profile_names(contract.profiles_dir()) if named else ()
    for rule, profile in named:
        if profile not in names:
            hint = suggest_profile(profile, names)
            yield f"rule {quoted(rule)}: there is no profile {quoted(profile)}{hint}"


def _wrong(job: JobFile, fact: str) -> FileError:
    problem: Problem = job.origin.problem(("policy",), fact)
    return FileError(job.origin.path, [problem])


@lru_cache(maxsize=64)
def serialize_policy(policy: Policy) -> str:
    """Return a policy as the text that is stored with a job; most jobs share a few policies."""
    return dump_policy(policy)


@lru_cache(maxsize=512)
def deserialize_policy(text: str | None) -> Policy:
    """Return the policy stored with a job; jobs of an older version have the default policy."""
    if text is None:
        return _shipped(DEFAULT)
    return parse_policy(text.encode(), _PINNED, PolicySource(paths=False))


def describe_digest(text: str | None, policy: Policy) -> str:
    """Return the digest of the policy stored with a job, as ``runner policy check`` prints it.

    If the job file tightened it to ``policy``, the digest of ``policy`` is appended.
    """
    written, held = compute_digest(deserialize_policy(text)), compute_digest(policy)
    return written if written == held else f"{written} + retry: {held}"


def stored_digest(policy: Policy) -> str:
    """Return the digest that a policy has after it was stored with a job."""
    return compute_digest(deserialize_policy(serialize_policy(policy)))


def apply_job_limits(job: JobFile, policy: Policy) -> Policy:
    """Return a policy with the ceilings and the backoff of the job file applied."""
    return tighten_policy(policy, job.retry, job.resources.time_limit)


def find_ineffective_limits(job: JobFile, policy: Policy) -> Iterator[str]:
    """Yield a warning for each limit of a job file that its policy already exceeds in strictness."""
    retry, limit = job.retry, job.resources.time_limit
    most = policy.ceilings
    for name, wish, held_at in (
        ("max_attempts", retry.max_attempts, most.attempts),
        ("no_progress", retry.no_progress, most.no_progress),
    ):
        if wish is not None and wish > held_at:
            yield f"retry.{name}: has no effect, because the policy allows only {held_at}"
    if limit is not None and most.wall is not None and limit > most.wall:
        allowed = readable_duration(most.wall)
        yield f"resources.time_limit: has no effect, because the policy allows only {allowed}"


def tighten_policy(policy: Policy, retry: Retry, wall: timedelta | None) -> Policy:
    """Return a policy with tighter ceilings and the backoff of a job file."""
    ceilings, backoff = _ceilings(policy.ceilings, retry, wall), _backoff(policy.backoff, retry)
    return replace(policy, ceilings=ceilings, backoff=backoff)


def _ceilings(ceilings: Ceilings, retry: Retry, wall: timedelta | None) -> Ceilings:
    own = replace(
        ceilings,
        attempts=retry.max_attempts or ceilings.attempts,
        no_progress=retry.no_progress or ceilings.no_progress,
        wall=wall or ceilings.wall,
    )
    return tightest(ceilings, own)


def _backoff(backoff: Backoff, retry: Retry) -> Backoff:
    """Return the backoff of a job; the values in the job file take precedence."""
    first, longest = retry.backoff, retry.backoff_max
    most = longest if longest is not None else max(backoff.max, first or backoff.max)
    return replace(backoff, first=min(backoff.first, most) if first is None else first, max=most)
