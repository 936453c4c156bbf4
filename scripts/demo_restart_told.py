"""gogooku3's decision, as its report tells it: killed at 84 % of the validation bar, and started again.

The report found validation slow, made it 7 to 10 times as fast, and threw away 45 minutes: 5,320 of 6,291
batches of a validation, and the epoch before it, because nothing is saved before a validation.  First its own
figures are put beside each other.  Then the same is done on this machine, twice: with checkpoints after
validations only, as told, and with one before (``checkpoint.before_eval``, which is the default where a
validation takes longer than a save).  Restart, resume and keep are each carried out and measured.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

BATCHES, DONE = 6291, 5320
"""Of the validation bar: 84.6 %, which the report calls 84 %."""

ELAPSED_S: Final = 45 * 60 + 21
EPOCH_S: Final = (3 * 3600, 4 * 3600)
NEW_EPOCH_S: Final = (20 * 60, 30 * 60)
FASTER: Final = (7, 10)
EPOCHS_TOLD: Final = 120

EPOCH: Final = 60
"""Steps; the demonstration has two epochs."""

EPOCHS: Final = 2
SHARE: Final = DONE / BATCHES
CHOICES: Final = ("keep", "resume", "restart")


def middle(pair: tuple[int, int]) -> float:
    return sum(pair) / 2


def told() -> list[str]:
    """Return the report's own figures as alternatives, in minutes until the first epoch is validated."""
    batch_s, new_epoch_s = ELAPSED_S / DONE, middle(NEW_EPOCH_S)
    validation_s = BATCHES * batch_s / middle(FASTER)
    keep_s = (BATCHES - DONE) * batch_s
    old_h = EPOCHS_TOLD * middle(EPOCH_S) / 3600
    lost = (new_epoch_s - keep_s) / 60
    new_h, old_h = EPOCHS_TOLD * new_epoch_s / 3600, EPOCHS_TOLD * middle(EPOCH_S) / 3600
    return [
        f"{DONE:,} of {BATCHES:,} batches in 45 min 21 s: {batch_s:.2f} s each",
        f"{FASTER[0]}-{FASTER[1]} x as fast, the whole bar takes {validation_s / 60:.1f} min",
        "minutes until the first epoch is trained and validated:",
        f"  keep     {keep_s / 60:5.1f}   the rest of the bar; the new code at the next start",
        f"  restart  {new_epoch_s / 60:5.1f}   a whole epoch of 20-30 min with the new code; what was done",
        f"  resume   {new_epoch_s / 60:5.1f}   as told: nothing is saved before the bar ends: a restart",
        f"  resume   {validation_s / 60:5.1f}   with a checkpoint before validation: the new bar alone",
        f"the restart lost {lost:.1f} min against keeping to the end of the bar and resuming there;",
        f"{EPOCHS_TOLD} epochs take {new_h:.0f} h with the new code and {old_h:.0f} h without: take it up",
        "with a checkpoint before validation nothing is lost: resume at once",
    ]


@dataclass(frozen=True, slots=True)
class Pace:
    """The seconds of one job's parts, by its metrics: of an uninterrupted run."""

    start_s: float
    """From the launch to the first step."""
    train_s: float
    """Of one epoch, without its validation."""
    eval_s: float
    """Of one validation."""
    after_s: float
    """From ``SHARE`` of the first validation to the last evaluation."""


def pace(launched: float, lines: Sequence[Mapping[str, Any]]) -> Pace:
    """Return the pace of a job from its metrics, which say when each step and each evaluation ended."""
    steps = {int(line["step"]): float(line["time"]) for line in lines if "loss" in line}
    evaluations = {int(line["step"]): float(line["time"]) for line in lines if "eval_loss" in line}
    lengths = [evaluations[step] - steps[step] for step in evaluations]
    eval_s = sum(lengths) / len(lengths)
    begun = steps[min(steps)]
    train_s = (steps[EPOCH] - begun) * EPOCH / (EPOCH - min(steps))
    decision = steps[EPOCH] + SHARE * lengths[0]
    return Pace(begun - launched, train_s, eval_s, max(evaluations.values()) - decision)


def arithmetic(old: Pace, new: Pace, *, saved: bool) -> dict[str, float]:
    """Return the seconds from ``SHARE`` of the first validation to the end, for each alternative."""
    epoch, left = new.train_s + new.eval_s, EPOCHS - 1
    restart = new.start_s + EPOCHS * epoch
    return {
        "keep": (1 - SHARE) * old.eval_s + left * (old.train_s + old.eval_s),
        "resume": new.start_s + new.eval_s + left * epoch if saved else restart,
        "restart": restart,
    }


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


class Replay:
    """Carries the alternatives out, with the commands that a user would type."""

    def __init__(self, demo: Any, folder: Path) -> None:  # noqa: ANN401  (the module of the demo)
        self._demo = demo
        self._folder = folder

    def whole(self, name: str, graphs: str) -> Pace:
        """Run a job to its end, and return its pace."""
        self._demo.runner("submit", str(job_file(self._folder, name, graphs, before_eval=False)))
        self._demo.finished(name)
        found = self._demo.job(name)
        return pace(_seconds(found["attempts"][0]["launched_at"]), self._lines(found))

    @staticmethod
    def _lines(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        path = Path(found["run_dir"]) / "attempts" / str(found["attempt"]) / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def interrupted(self, name: str, old: Pace, *, saved: bool, scratch: bool) -> float:
        """Kill a job at ``SHARE`` of its first validation; return the seconds of the new code from there."""
        demo, folder = self._demo, self._folder
        demo.runner("submit", str(job_file(folder, name, "off", before_eval=saved)))
        demo.until(name, lambda found: (found.get("progress") or {}).get("phase") == "eval")
        time.sleep(SHARE * old.eval_s)
        decided = time.time()
        demo.runner("hold", name)
        demo.until(name, lambda found: found["state"] == "held", may_end=True)
        demo.runner("apply", str(job_file(folder, name, "memory", before_eval=saved)), show=False)
        demo.runner(*(("restart", name, "--from", "scratch") if scratch else ("release", name)))
        return float(demo.finished(name) - decided)


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def replay(demo: Any, folder: Path) -> bool:  # noqa: ANN401  (the module of the demo)
    """Show what was told and what this machine measures; return whether the verdicts are as expected."""
    print("=== gogooku3 at 84 % of the validation bar, by the figures of its report")
    for line in told():
        print(f"  {line}")
    print("\n=== the same on this machine, two short epochs", flush=True)
    run = Replay(demo, folder)
    old, new = run.whole("told-keep", "off"), run.whole("told-new", "memory")
    faster = f"{old.eval_s / new.eval_s:.1f} x as fast"
    print(f"  validation {old.eval_s:.1f} s, with the graphs kept {new.eval_s:.1f} s: {faster}")
    print(f"  an epoch of training before it {old.train_s:.1f} s, and {new.train_s:.1f} s")
    real = {
        False: {"keep": old.after_s, "restart": run.interrupted("told", old, saved=False, scratch=False)},
        True: {
            "keep": old.after_s,
            "resume": run.interrupted("guarded", old, saved=True, scratch=False),
            "restart": run.interrupted("guarded-restart", old, saved=True, scratch=True),
        },
    }
    real[False]["resume"] = real[False]["restart"]  # there is nothing to resume from
    verdicts = {saved: report(arithmetic(old, new, saved=saved), real[saved], saved=saved) for saved in real}
    print(
        f"verdict as told: {verdicts[False]}; with a checkpoint before validation: {verdicts[True]}",
        flush=True,
    )
    return verdicts[True] == "resume"


def report(predicted: Mapping[str, float], real: Mapping[str, float], *, saved: bool) -> str:
    """Print the alternatives, and return the one that is predicted to end first."""
    chosen = min(CHOICES, key=lambda choice: (predicted[choice], choice == "resume" and not saved))
    print(f"  checkpoint {'before' if saved else 'after'} validation, seconds from 84 % of it to the end:")
    for choice in CHOICES:
        mark = "  chosen" if choice == chosen else ""
        print(f"    {choice:<9}{predicted[choice]:>8.1f} predicted{real[choice]:>8.1f} measured{mark}")
    return chosen
