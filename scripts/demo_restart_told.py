"""gogooku3's decision, as its report tells it: killed at 84 % of the validation bar, and started again.

The report found validation slow, made it 7 to 10 times as fast, and threw away 45 minutes: 5,320 of 6,291
batches of a validation, and the epoch before it, because nothing is saved before a validation.  First its own
figures are put beside each other.  Then a training of this machine is offered the faster code at 84 % of its
first validation, twice: with checkpoints after validations only, as told, and with one before
(``checkpoint.before_eval``, which is the default where a validation takes longer than a save).  A canary of
the daemon measures the change, and the policy of the job file decides.  Every alternative is carried out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

BATCHES, DONE = 6291, 5320
"""Of the validation bar: 84.6 %, which the report calls 84 %."""

ELAPSED_S: Final = 45 * 60 + 21
EPOCH_S: Final = (3 * 3600, 4 * 3600)
NEW_EPOCH_S: Final = (20 * 60, 30 * 60)
FASTER: Final = (7, 10)
EPOCHS_TOLD: Final = 120

EPOCH: Final = 150
"""Steps; the demonstration has five epochs, and validation is most of each."""

EPOCHS: Final = 5
SHARE: Final = DONE / BATCHES
CANARY: Final = 60
CANARY_AT: Final = 30
CHOICES: Final = ("keep", "resume", "restart")
POLICY: Final = "restart-if-epoch-only-checkpoints"
OFF: Final = 0.25
"""By how much the expected time may miss the measured one, where the bounds do not say more."""


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


def job_file(folder: Path, name: str, graphs: str, *, before_eval: bool) -> Path:
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
            "eval_batches": 290,
            "log_every": 1,
        },
        "profile": {"extends": "cpu", "name": f"graphs-{graphs}", "graph_cache": graphs, "threads": 1},
        "policy": POLICY,
        "resources": {"cpus": 1, "memory": "2GiB"},
        "checkpoint": {
            "every": None,
            "every_steps": EPOCH * EPOCHS if not before_eval else EPOCH,
            "on_stop": False,
            "before_eval": before_eval,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{graphs}.yaml"
    path.write_text(json.dumps(job, indent=1))  # JSON is YAML
    return path


@dataclass(frozen=True, slots=True)
class Case:
    """A decision of the daemon, and the seconds from it to the end by each alternative carried out."""

    answer: Mapping[str, Any]
    real: Mapping[str, float]

    @property
    def chosen(self) -> str:
        return str(self.answer["outcome"])

    def bounds(self, choice: str) -> tuple[float, float] | None:
        """Return between which seconds an alternative was predicted; None if it was not.

        From what is expected without the canary beside the job to what is certain, either way; what is
        expected alone may be off by a quarter.
        """
        sure, expected = (self.answer["econ"][kind][choice] for kind in ("seconds", "expected"))
        if sure is None or expected is None:
            return None
        return min(sure, expected * (1 - OFF)), max(sure, expected * (1 + OFF))


def told_well(case: Case) -> bool:
    """Return whether the fastest alternative was chosen, and each ended within its bounds."""
    bounds = {choice: case.bounds(choice) for choice in case.real}
    within = all(b is None or b[0] <= case.real[choice] <= b[1] for choice, b in bounds.items())
    return case.chosen == min(case.real, key=lambda choice: case.real[choice]) and within


def report(case: Case, *, saved: bool) -> None:
    """Print the alternatives of a case."""
    fastest = min(case.real, key=lambda choice: case.real[choice])
    print(f"  checkpoint {'before' if saved else 'after'} validation, seconds from 84 % of it to the end:")
    for choice in CHOICES:
        marks = [name for name, found in (("chosen", case.chosen), ("fastest", fastest)) if found == choice]
        bounds, took = case.bounds(choice), case.real.get(choice)
        told_s = (
            "not possible: nothing is saved" if bounds is None else f"{bounds[0]:5.1f} to {bounds[1]:5.1f}"
        )
        took_s = "" if took is None else f"   took {took:5.1f}"
        print(f"    {choice:<8} predicted {told_s}{took_s}   {' '.join(marks)}".rstrip())


def seconds_from_decision(lines: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds from ``SHARE`` of the first validation to the end, of a job that was left alone."""
    steps = {int(line["step"]): float(line["time"]) for line in lines if "loss" in line}
    evaluations = {int(line["step"]): float(line["time"]) for line in lines if "eval_loss" in line}
    length = evaluations[EPOCH] - steps[EPOCH]
    return max(evaluations.values()) - (steps[EPOCH] + SHARE * length)


class Replay:
    """Carries the alternatives out, with the commands that a user would type."""

    def __init__(self, demo: Any, folder: Path) -> None:  # noqa: ANN401  (the module of the demo)
        self._demo = demo
        self._folder = folder

    def keep(self, name: str) -> float:
        """Run a job to its end as it is; return the seconds from the moment of the decision."""
        self._demo.runner("submit", str(job_file(self._folder, name, "off", before_eval=False)))
        self._demo.finished(name)
        found = self._demo.job(name)
        path = Path(found["run_dir"]) / "attempts" / str(found["attempt"]) / "metrics.jsonl"
        return seconds_from_decision([json.loads(line) for line in path.read_text().splitlines()])

    def decide(self, name: str, *, saved: bool) -> tuple[dict[str, Any], float]:
        """Let a canary measure and the policy decide; return the answer, and the seconds to the end."""
        demo = self._demo
        demo.runner("submit", str(job_file(self._folder, name, "off", before_eval=saved)))
        change = str(job_file(self._folder, name, "memory", before_eval=saved))
        demo.at_step(name, CANARY_AT)
        demo.runner("apply", change, "--dry-run", "--canary", str(CANARY))
        [canary] = [each for each in demo.json_lines("list", "--json") if each["name"] == f"{name}-canary"][
            :1
        ]
        at = self._late_in_validation(name)
        answer = json.loads(demo.runner("apply", change, "--measured", str(canary["id"]), "--json"))
        for line in answer["arithmetic"]:
            print(f"  {line}")
        print(f"  => {answer['outcome']}: {answer['why']}", flush=True)
        return answer, float(demo.finished(name) - at)

    def interrupted(self, name: str, *, saved: bool, scratch: bool) -> float:
        """Stop a job at ``SHARE`` of its first validation; return the seconds of the new code from there."""
        demo, folder = self._demo, self._folder
        demo.runner("submit", str(job_file(folder, name, "off", before_eval=saved)))
        at = self._late_in_validation(name)
        demo.runner("hold", name)
        demo.until(name, lambda found: found["state"] == "held", may_end=True)
        demo.runner("apply", str(job_file(folder, name, "memory", before_eval=saved)), show=False)
        demo.runner(*(("restart", name, "--from", "scratch") if scratch else ("release", name)))
        return float(demo.finished(name) - at)

    def _late_in_validation(self, name: str) -> float:
        """Return the time at which ``SHARE`` of the first validation is over, as the job reports."""

        def late(found: dict[str, Any]) -> bool:
            path = Path(found["run_dir"]) / "attempts" / str(found["attempt"]) / "status.json"
            status = json.loads(path.read_text()) if path.exists() else {}
            whole_s, left_s = status.get("eval_s"), status.get("eval_left_s")
            return whole_s is not None and left_s is not None and left_s <= (1 - SHARE) * whole_s

        found = self._demo.until(name, late)
        return datetime.now().astimezone().timestamp() if found else 0.0


def replay(demo: Any, folder: Path) -> bool:  # noqa: ANN401  (the module of the demo)
    """Show what was told and what this machine measures; return whether the verdicts were right."""
    print("=== gogooku3 at 84 % of the validation bar, by the figures of its report")
    for line in told():
        print(f"  {line}")
    print(f"\n=== the same on this machine, five short epochs, policy {POLICY}", flush=True)
    run = Replay(demo, folder)
    keep_s = run.keep("told-keep")
    cases = {}
    for saved, name in ((False, "told"), (True, "guarded")):
        print(f"\n--- a checkpoint {'before' if saved else 'only after'} the validation", flush=True)
        answer, took_s = run.decide(name, saved=saved)
        real = {"keep": keep_s, str(answer["outcome"]): took_s}
        for choice in ("resume", "restart") if saved else ("restart",):
            if choice not in real:
                scratch = choice == "restart"
                real[choice] = run.interrupted(f"{name}-{choice}", saved=saved, scratch=scratch)
        cases[saved] = Case(answer, real)
    print("\n=== what came of it")
    for saved, case in cases.items():
        report(case, saved=saved)
    print(
        f"verdicts: {cases[False].chosen} as told, {cases[True].chosen} with a checkpoint before", flush=True
    )
    return all(map(told_well, cases.values()))
