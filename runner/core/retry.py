"""What follows the end of an attempt: a pure decision with its reason.

The policy file will one day answer here; until then the rules are these, first match wins:

1. the program says that another attempt is pointless (78, 93) or that its weights are poisoned (97): give up
2. checkpoints exist and none is valid: hold, never a silent fresh start
3. the attempts are used up, or K in a row ended at the same checkpoint step: give up
4. anything else: resume from the newest valid checkpoint, after an exponential backoff;
   a program that was stopped from outside and saved (75) with a newer checkpoint than before is not charged
"""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, TypeAlias

STOPPED: Final = 75
NON_FINITE: Final = 97
NO_VALID_CHECKPOINT: Final = 99
POINTLESS: Final = {
    78: "the program refused its spec or the saved state",
    93: "the program asked not to be restarted",
    NON_FINITE: "the loss is not finite; the weights were not updated",
}


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How often, and how patiently, a job is tried again."""

    max_attempts: int = 5  # attempts that count, the first one included
    no_progress: int = 3  # attempts in a row that end at the same checkpoint step
    backoff: timedelta = timedelta(seconds=5)  # before the second attempt; doubles from there
    backoff_max: timedelta = timedelta(minutes=5)

    def delay_after(self, charged: int) -> timedelta:
        """Return the wait after ``charged`` attempts that counted: base, twice that, four times, ..."""
        doublings = min(max(charged - 1, 0), 32)
        return min(self.backoff * (1 << doublings), self.backoff_max)


@dataclass(frozen=True, slots=True)
class Ended:
    """The evidence about the end of one attempt, gathered by the daemon."""

    exit_code: int | None  # None: nobody knows (the container vanished)
    cause: str  # one word, see docs/glossary.md
    message: str = ""  # one line for people
    oom_seen: bool = False  # the kernel killed a process of this attempt for memory
    completed: bool = False  # exit 0, and the result says so where the workload writes one
    checkpoint_step: int | None = None  # newest valid checkpoint of the lineage
    checkpoints_rejected: tuple[str, ...] = ()  # present and not valid, with reasons


@dataclass(frozen=True, slots=True)
class Ledger:
    """What earlier attempts of this job have used up."""

    charged: int = 0  # attempts that count
    last_step: int | None = None  # newest checkpoint when the last attempt ended
    same_step: int = 0  # attempts in a row that ended there

    def after(self, ended: Ended) -> "Ledger":
        """Return the ledger with one more charged attempt in it."""
        stuck = self.charged > 0 and ended.checkpoint_step == self.last_step
        return replace(
            self,
            charged=self.charged + 1,
            last_step=ended.checkpoint_step,
            same_step=self.same_step + 1 if stuck else 1,
        )


@dataclass(frozen=True, slots=True)
class Finish:
    why: str


@dataclass(frozen=True, slots=True)
class Resume:
    delay: timedelta
    why: str
    ledger: Ledger = field(default_factory=Ledger)


@dataclass(frozen=True, slots=True)
class Hold:
    why: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    why: str


Verdict: TypeAlias = Finish | Resume | Hold | GiveUp


def decide(limits: RetryLimits, ledger: Ledger, ended: Ended) -> Verdict:
    """Return what to do after an attempt that nobody had asked to stop."""
    if ended.completed:
        return Finish(_finished(ended))
    if ended.exit_code in POINTLESS:
        return GiveUp(f"{POINTLESS[ended.exit_code]}{_colon(ended.message)}")
    if ended.exit_code == NO_VALID_CHECKPOINT or _all_rejected(ended):
        return Hold(f"checkpoints exist and none is valid{_colon('; '.join(ended.checkpoints_rejected))}")
    if ended.exit_code == STOPPED and (ended.checkpoint_step or 0) > (ledger.last_step or 0):
        free = replace(ledger, last_step=ended.checkpoint_step, same_step=0)
        return Resume(limits.backoff, f"stopped from outside: {_resume(ended)}", free)
    after = ledger.after(ended)
    if after.same_step >= limits.no_progress:
        return GiveUp(_stuck(after, ended))
    if after.charged >= limits.max_attempts:
        return GiveUp(f"all {limits.max_attempts} attempts are used; the last: {_last(ended)}")
    return Resume(limits.delay_after(after.charged), f"{ended.cause}: {_resume(ended)}", after)


def _all_rejected(ended: Ended) -> bool:
    return bool(ended.checkpoints_rejected) and ended.checkpoint_step is None


def _finished(ended: Ended) -> str:
    return "completed, although a child process was killed for memory" if ended.oom_seen else "completed"


def _resume(ended: Ended) -> str:
    if ended.checkpoint_step is None:
        return "no checkpoint yet, starting from step 0"
    skipped = f", {len(ended.checkpoints_rejected)} invalid skipped" if ended.checkpoints_rejected else ""
    return f"resuming from step {ended.checkpoint_step}{skipped}"


def _stuck(after: Ledger, ended: Ended) -> str:
    where = _at(after.last_step)
    return f"no progress: {after.same_step} attempts in a row ended {where}; the last: {_last(ended)}"


def _last(ended: Ended) -> str:
    return f"{ended.cause}{_colon(ended.message)}"


def _at(step: int | None) -> str:
    return "without any checkpoint" if step is None else f"at checkpoint step {step}"


def _colon(text: str) -> str:
    return f": {text}" if text else ""
