"""gogooku3's decision, as its report tells it: killed at 84 % of the validation bar, and started again.

The report found validation slow, made it 7 to 10 times as fast, and threw away 45 minutes: 5,320 of 6,291
batches of a validation, and the epoch before it, because nothing is saved before a validation.  First its own
figures are put beside each other.  Then a training of this machine is offered the faster code at 84 % of its
first validation, twice: with checkpoints after validations only, as told, and with one before
(``checkpoint.before_eval``, which is the default where a validation takes longer than a save).  A canary of
the daemon measures the change, and the policy of the job file decides.  All alternatives are carried out at
the same time, beside a twin that is left alone.  They feel the same load, so what the twin has done of its
way by the time that an alternative has ended can be held against what was predicted, at any load.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from scripts.demo_daemon import Daemon, place

BATCHES, DONE = 6291, 5320
"""Of the validation bar: 84.6 %, which the report calls 84 %."""

ELAPSED_S: Final = 45 * 60 + 21
EPOCH_S: Final = (3 * 3600, 4 * 3600)
NEW_EPOCH_S: Final = (20 * 60, 30 * 60)
FASTER: Final = (7, 10)
EPOCHS_TOLD: Final = 120

EPOCH: Final = 200
"""Steps; validation is a third of an epoch here, and most of it in the report."""

EPOCHS: Final = 3
SHARE: Final = DONE / BATCHES
EVALUATED: Final = 200
"""Batches of a validation."""

CPUS: Final = 0.4
"""Of each job: five have room on two cores, which are the job, its canary, its twin and two alternatives."""

CANARY: Final = 100
CANARY_AT: Final = 30
CHOICES: Final = ("keep", "resume", "restart")
POLICY: Final = "restart-if-epoch-only-checkpoints"
REGRET: Final = 0.05
"""By how much the verdict may take longer than the fastest alternative."""

OFF: Final = 0.25
"""By how much an expected time may miss the measured one, where the bounds do not say more."""


def middle(pair: tuple[int, int]) -> float:
    return sum(pair) / 2


def told() -> list[str]:
    """Return the report's own figures as alternatives, in minutes until the first epoch is validated."""
    batch_s, new_epoch_s = ELAPSED_S / DONE, middle(NEW_EPOCH_S)
    validation_s = BATCHES * batch_s / middle(FASTER)
    keep_s = (BATCHES - DONE) * batch_s
    lost = (new_epoch_s - keep_s) / 60
    new_h, old_h = EPOCHS_TOLD * new_epoch_s / 3600, EPOCHS_TOLD * middle(EPOCH_S) / 3600
    return [
        f"{DONE:,} of {BATCHES:,} batches in 45 min 21 s: {batch_s:.2f} s each",
        f"{FASTER[0]}-{FASTER[1]} x as fast, the whole bar takes {validation_s / 60:.1f} min",
        "minutes until the first epoch is trained and validated:",
        f"  keep     {keep_s / 60:5.1f}   the rest of the bar, with the old code",
        f"  restart  {new_epoch_s / 60:5.1f}   a whole epoch of 20-30 min with the new code; what was done",
        f"  resume   {new_epoch_s / 60:5.1f}   as told: nothing is saved before the bar ends: a restart",
        f"  resume   {validation_s / 60:5.1f}   with a checkpoint before validation: the new bar alone",
        f"the restart lost {lost:.1f} min against going on to the end of the bar and resuming there;",
        f"{EPOCHS_TOLD} epochs take {new_h:.0f} h with the new code and {old_h:.0f} h without: to the end of",
        "them a restart at once is right, and with a checkpoint before validation nothing is lost at all",
    ]


def job_file(daemon: Daemon, name: str, graphs: str, *, before_eval: bool) -> Path:
    """Write the job file of one job with one graph cache, and return where it is."""
    job = {
        "name": name,
        "workload": {
            "kind": "graph_forecast",
            "data": "synthetic-stocks",
            "synthetic_assets": 24,
            "synthetic_days": 6000,
            "hidden": 32,
            "steps": EPOCH * EPOCHS,
            "batch_size": 4,
            "eval_every": EPOCH,
            "eval_batches": EVALUATED,
            "log_every": 1,
        },
        "profile": {"extends": "cpu", "name": f"graphs-{graphs}", "graph_cache": graphs, "threads": 1},
        "policy": POLICY,
        "resources": {"cpus": CPUS, "memory": "2GiB"},
        "checkpoint": {
            "every": None,
            "every_steps": EPOCH * EPOCHS if not before_eval else EPOCH,
            "on_stop": False,
            "before_eval": before_eval,
        },
    }
    return daemon.write(f"{name}-{graphs}.yaml", job)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The seconds from the decision to the end by one alternative, and those of its twin left alone.

    ``share`` is the part of its way that the twin has gone when the alternative has ended; above 1 it had
    ended before.
    """

    took_s: float
    kept_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Case:
    """A decision of the daemon, and each other alternative as it was carried out."""

    answer: Mapping[str, Any]
    real: Mapping[str, Outcome]

    @property
    def chosen(self) -> str:
        return str(self.answer["outcome"])

    @property
    def fastest(self) -> str:
        return min(self.shares, key=lambda choice: self.shares[choice])

    @property
    def shares(self) -> dict[str, float]:
        """The part of the twin's way that each alternative took."""
        return {"keep": 1.0} | {choice: outcome.share for choice, outcome in self.real.items()}

    def expected_s(self, choice: str) -> float | None:
        found: float | None = self.answer["econ"]["expected"][choice]
        return found

    def bounds(self, choice: str) -> tuple[float, float] | None:
        """Return between which shares of going on an alternative was predicted; None if it was not.

        Up to what is certain; what is expected may be off by a quarter either way.  The start has been seen
        once, in the canary: among others that start at the same time it may take twice as long, or half.
        """
        sure, expected = (self.answer["econ"][kind] for kind in ("seconds", "expected"))
        if sure[choice] is None or expected[choice] is None:
            return None
        start = 0.0 if choice == "keep" else self.answer["econ"]["start_s"] / expected["keep"]
        certain, about = sure[choice] / sure["keep"], expected[choice] / expected["keep"]
        return (about - start / 2) * (1 - OFF), max(certain, (about + start) * (1 + OFF))


def told_well(case: Case) -> bool:
    """Return True if no other alternative was clearly faster than the verdict.

    Whether each ended within its bounds is printed, and decides nothing: the load may change meanwhile.
    """
    return case.shares[case.chosen] <= case.shares[case.fastest] * (1 + REGRET)


def report(case: Case, *, saved: bool) -> None:
    """Print the alternatives of a case."""
    print(f"  checkpoint {'before' if saved else 'after'} validation, from 84 % of it to the end:")
    for choice in CHOICES:
        print(f"    {choice:<8} {_line(case, choice)}".rstrip())


def _line(case: Case, choice: str) -> str:
    """Return what was predicted of an alternative, and what came of it."""
    found = (("chosen", case.chosen), ("fastest", case.fastest))
    marks = " ".join(name for name, which in found if which == choice)
    expected_s, bounds, outcome = case.expected_s(choice), case.bounds(choice), case.real.get(choice)
    if expected_s is None or bounds is None:
        return "not possible: nothing is saved, so it would be a restart"
    if choice == "keep":
        took = ", ".join(f"{each.kept_s:.1f}" for each in case.real.values())
        return f"expected {expected_s:5.1f} s; took {took} s beside the others   {marks}"
    told_s = f"expected {expected_s:5.1f} s, {bounds[0]:.2f} to {bounds[1]:.2f} of going on"
    if outcome is None:
        return told_s
    if not bounds[0] <= outcome.share <= bounds[1]:
        marks += "   outside of what was predicted"
    return f"{told_s}; took {outcome.took_s:.1f} s, {outcome.share:.2f} of its twin's way   {marks}"


Lines: TypeAlias = Sequence[Mapping[str, Any]]
"""The metrics of a job."""


def decision_s(lines: Lines, step: int = EPOCH) -> float:
    """Return the time at which ``SHARE`` of the validation after a step was over."""
    trained, evaluated = _times(lines)
    return trained[step] + SHARE * (evaluated[step] - trained[step])


def way(lines: Lines, until_s: float, step: int = EPOCH) -> float:
    """Return which part of the way from the decision to its end a job had gone at a time.

    Steps and validations count as much of it as they take on the mean, so a load that changes on the way
    does not matter.
    """
    trained, evaluated = _times(lines)
    first, last = min(trained), max(trained)
    lengths = [evaluated[each] - trained[each] for each in evaluated]
    mean_s = (trained[last] - trained[first] - sum(lengths[:-1])) / (last - first)
    validation_s = sum(lengths) / len(lengths)
    left = {each: length for each, length in zip(evaluated, lengths, strict=True) if each >= step}
    gone = sum(mean_s for each, at in trained.items() if each > step and at <= until_s)
    whole = mean_s * (last - step)
    for each, length in left.items():
        begun = SHARE if each == step else 0.0
        done = min(max((until_s - trained[each]) / length, begun), 1.0)
        gone += (done - begun) * validation_s
        whole += (1 - begun) * validation_s
    return gone / whole


def _times(lines: Lines) -> tuple[dict[int, float], dict[int, float]]:
    """Return the times of the steps, and of the ends of validations by their step."""
    trained = {int(line["step"]): float(line["time"]) for line in lines if "loss" in line}
    evaluated = {int(line["step"]): float(line["time"]) for line in lines if "eval_loss" in line}
    return trained, evaluated


def canary(daemon: Daemon, name: str, change: Path) -> str:
    """Let a canary of a job measure a change, and return its id."""
    daemon.runner("apply", str(change), "--dry-run", "--canary", str(CANARY), codes=(0, 3))
    jobs = (json.loads(line) for line in daemon.runner("list", "--json", show=False).splitlines())
    return next(str(each["id"]) for each in jobs if each["name"] == f"{name}-canary")


def offered(daemon: Daemon, change: Path, measured: str) -> dict[str, Any]:
    """Offer a change that a canary has measured; print and return the decision of the policy."""
    arguments = ("apply", str(change), "--measured", measured, "--json")
    print(f"$ runner {' '.join(arguments)}", flush=True)
    answer: dict[str, Any] = json.loads(daemon.runner(*arguments, show=False, codes=(0, 3)))
    for line in answer["arithmetic"]:
        print(f"  {line}")
    print(f"  => {answer['outcome']}: {answer['why']}", flush=True)
    return answer


def finished(daemon: Daemon, name: str) -> float:
    """Return the time of the last step of a succeeded job, as the job reported it."""
    found = daemon.ended(name)
    if found["outcome"] != "succeeded":
        sys.exit(f"demo: job {name}: {found['why']}")
    return float(daemon.metrics(name)[-1]["time"])


class Replay:
    """Carries the alternatives out, with the commands that a user would type."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def case(self, name: str, *, saved: bool) -> Case:
        """Let a canary measure and the policy decide, and carry all alternatives out."""
        daemon, others = self._daemon, ("resume", "restart") if saved else ("restart",)
        for each in (name, f"{name}-alone", *(f"{name}-{choice}" for choice in others)):
            daemon.runner("submit", str(job_file(daemon, each, "off", before_eval=saved)))
        change = job_file(daemon, name, "memory", before_eval=saved)
        daemon.at_step(name, CANARY_AT)
        measured = canary(daemon, name, change)
        with ThreadPoolExecutor() as pool:  # all come to the same moment of the same validation
            after = int(daemon.job(name)["progress"]["step"])
            carried = {
                choice: pool.submit(self._carry_out, f"{name}-{choice}", after, saved=saved, choice=choice)
                for choice in others
            }
            at, step = self._late_in_validation(name, after)
            answer = offered(daemon, change, measured)
        moments = {choice: (f"{name}-{choice}", *each.result()) for choice, each in carried.items()}
        if answer["outcome"] != "keep":
            moments[str(answer["outcome"])] = (name, at, step)
        twin = f"{name}-alone"
        return Case(answer, {choice: self._outcome(twin, *moment) for choice, moment in moments.items()})

    def _carry_out(self, name: str, after: int, *, saved: bool, choice: str) -> tuple[float, int]:
        """Stop a job at ``SHARE`` of the validation after a step, and go on as an alternative has it."""
        daemon = self._daemon
        at, step = self._late_in_validation(name, after)
        daemon.runner("hold", name)
        daemon.ended(name)
        daemon.runner(
            "apply", str(job_file(daemon, name, "memory", before_eval=saved)), show=False, codes=(0, 3)
        )
        daemon.runner(*(("restart", name, "--from", "scratch") if choice == "restart" else ("release", name)))
        return at, step

    def _outcome(self, twin: str, name: str, at: float, step: int) -> Outcome:
        """Return what came of a job since a moment of its validation after a step, beside its twin."""
        took_s = finished(self._daemon, name) - at
        finished(self._daemon, twin)
        lines = self._daemon.metrics(twin)
        began_s, end_s = decision_s(lines, step), max(float(line["time"]) for line in lines)
        kept_s = end_s - began_s
        share = way(lines, began_s + took_s, step) if took_s < kept_s else took_s / kept_s
        return Outcome(took_s, kept_s, share)

    def _late_in_validation(self, name: str, after: int = 0) -> tuple[float, int]:
        """Return the time at which ``SHARE`` of a validation is over, as the job reports, and its step.

        It is the one after a step; on a slow machine the canary of the first epoch ends in a later one.
        """
        seen: list[int] = []

        def late(found: dict[str, Any]) -> bool:
            path = Path(found["run_dir"]) / "attempts" / str(found["attempt"]) / "status.json"
            status = json.loads(path.read_text()) if path.exists() else {}
            whole_s, left_s = status.get("eval_s"), status.get("eval_left_s")
            if whole_s is None or left_s is None or status["step"] < after:
                return False
            seen[:] = [int(status["step"])]
            return bool(left_s <= (1 - SHARE) * whole_s)

        self._daemon.until(name, late)
        return datetime.now().astimezone().timestamp(), seen[0]


def replay(daemon: Daemon) -> bool:
    """Show what was told and what this machine measures; return whether the verdicts were right."""
    print("=== gogooku3 at 84 % of the validation bar, by the figures of its report")
    for line in told():
        print(f"  {line}")
    print(f"\n=== the same on this machine, {EPOCHS} short epochs, policy {POLICY}", flush=True)
    run = Replay(daemon)
    cases = {}
    for saved, name in ((False, "told"), (True, "guarded")):
        print(f"\n--- a checkpoint {'before' if saved else 'only after'} the validation", flush=True)
        cases[saved] = run.case(name, saved=saved)
    print("\n=== what came of it")
    for saved, case in cases.items():
        report(case, saved=saved)
    print(
        f"verdicts: {cases[False].chosen} as told, {cases[True].chosen} with a checkpoint before", flush=True
    )
    return all(map(told_well, cases.values()))


def main() -> int:
    daemon = Daemon(place("demo-restart"), 900)
    daemon.runner("list", show=False)  # starts the daemon
    try:
        return 0 if replay(daemon) else 1
    finally:
        daemon.runner("stop", show=False)


if __name__ == "__main__":
    sys.exit(main())
