"""The catalogue of facts about an attempt: its end, its progress and its checkpoints."""

from typing import Final

from runner.core.policy.causes import ExitCause
from runner.core.policy.facts import DecisionPoint, Fact, FactKind

_EXIT: Final = (DecisionPoint.EXIT,)
_WATCH: Final = (DecisionPoint.WATCH,)
_RUNNING: Final = (DecisionPoint.WATCH, DecisionPoint.CHANGE)
_ALWAYS: Final = (DecisionPoint.EXIT, DecisionPoint.WATCH, DecisionPoint.CHANGE)

PHASES: Final = ("init", "data", "compile", "train", "eval", "save", "drain")

EXIT_FACTS: Final = (
    Fact(
        "exit.class",
        FactKind.WORD,
        _EXIT,
        "how it ended: work complete, exit 0 without the required result, an exit code of its own, "
        "a signal, never started, or gone without an exit code",
        "executor's end of the attempt, and result.json where the workload writes one",
        ("success", "no_result", "exception", "signal", "no_start", "vanished"),
        hint=True,
    ),
    Fact(
        "exit.code",
        FactKind.WHOLE,
        _EXIT,
        "exit code; 128 + n usually means signal n",
        "executor's end of the attempt",
        least=0,
        most=255,
        hint=True,
    ),
    Fact(
        "exit.signal",
        FactKind.WHOLE,
        _EXIT,
        "signal that ended its first process, where the executor sees signals apart from exit codes",
        "executor's end of the attempt",
        least=1,
        most=64,
        hint=True,
    ),
    Fact(
        "exit.exception",
        FactKind.TEXT,
        _EXIT,
        "type of the Python exception that ended it, without its module, such as `ImportError`",
        "the last traceback at the end of the log",
        hint=True,
    ),
    Fact(
        "killed_by",
        FactKind.WORD,
        _EXIT,
        "who stopped it: `deadline` is the time limit, `change` a new revision, "
        "`watch/NAME` a rule of on_watch",
        "the runner's own journal: the reason of the stop that preceded the end",
        ("nobody", "operator", "deadline", "preemption", "change", "watch/..."),
    ),
    Fact(
        "cause",
        FactKind.WORD,
        _EXIT,
        "why it ended (see the life cycle of a job)",
        "exit code, kernel counters and the result of the program",
        tuple(ExitCause),
        hint=True,
    ),
    Fact(
        "root",
        FactKind.TEXT,
        _EXIT,
        "fingerprint of the failure; tries and the no-progress ceiling are counted by it",
        "cause and message without numbers and paths; the cause alone where it is specific",
        hint=True,
    ),
    Fact(
        "oom.host",
        FactKind.TRUTH,
        _EXIT,
        "the kernel killed a process of it for memory",
        "oom_kill as the container's cgroup counted it, or the engine's OOMKilled",
    ),
    Fact(
        "oom.device",
        FactKind.TRUTH,
        _EXIT,
        "a device had no memory left",
        "exit 98 or cause device_out_of_memory in result.json; for other programs a pattern in the log",
        hint=True,
    ),
    Fact(
        "nan",
        FactKind.TRUTH,
        _EXIT,
        "loss or gradient was not finite; no checkpoint contains the update",
        "exit 97 or cause non_finite in result.json",
        hint=True,
    ),
    Fact(
        "host.rebooted",
        FactKind.TRUTH,
        _EXIT,
        "the machine was rebooted while it ran",
        "boot id at launch compared with the boot id now",
    ),
)

PROGRESS_FACTS: Final = (
    Fact("phase", FactKind.WORD, _ALWAYS, "current phase, or the last one", "status.json", PHASES, hint=True),
    Fact(
        "heartbeat.age_s",
        FactKind.NUMBER,
        _WATCH,
        "time since its last report",
        "the runner's clock, since status.json last changed",
        least=0,
        unit="s",
    ),
    Fact(
        "heartbeat.limit_s",
        FactKind.NUMBER,
        _WATCH,
        "allowed silence in this phase: a minimum, or five times the longest silence seen in it",
        "learned by the runner in training; in the first five steps, and in init, compile, eval, save and "
        "drain, the operator's `silence_limits_s`",
        least=0,
        unit="s",
    ),
    Fact(
        "heartbeat.age_over_limit",
        FactKind.TRUTH,
        _WATCH,
        "it has been silent for longer than the limit",
        "the two above; unknown while the limit is",
    ),
    Fact(
        "data_wait",
        FactKind.NUMBER,
        _ALWAYS,
        "share of step time in which it waited for the next batch",
        "status.json",
        least=0,
        most=1,
        hint=True,
    ),
    Fact("progress.step", FactKind.WHOLE, _ALWAYS, "last completed step", "status.json", least=0, hint=True),
    Fact(
        "progress.total",
        FactKind.WHOLE,
        _ALWAYS,
        "steps of the whole job",
        "status.json total_steps",
        least=0,
        hint=True,
    ),
    Fact(
        "progress.epoch_fraction",
        FactKind.NUMBER,
        _ALWAYS,
        "share of the present epoch that is done",
        "status.json step and the steps of an epoch",
        least=0,
        most=1,
        hint=True,
    ),
    Fact(
        "progress.total_fraction",
        FactKind.NUMBER,
        _ALWAYS,
        "share of the whole job that is done",
        "status.json step / total_steps",
        least=0,
        most=1,
        hint=True,
    ),
    Fact(
        "progress.rate",
        FactKind.NUMBER,
        _ALWAYS,
        "mean rate of the attempt since its first step",
        "items in status.json, as the runner sees them pass; at the end metrics.jsonl",
        least=0,
        unit="items/s",
        hint=True,
    ),
    Fact(
        "progress.rate_recent",
        FactKind.NUMBER,
        _ALWAYS,
        "mean rate over economics.rate_window",
        "the same; at the end items_per_s in status.json",
        least=0,
        unit="items/s",
        hint=True,
    ),
    Fact(
        "progress.idle_s",
        FactKind.NUMBER,
        _WATCH,
        "time since the step last grew, whatever the heartbeat says",
        "the runner's clock, since the step in status.json last grew",
        least=0,
        unit="s",
    ),
    Fact(
        "progress.advanced",
        FactKind.TRUTH,
        _ALWAYS,
        "its newest valid checkpoint is newer than the one that the attempt began with",
        "manifests, verified by the runner at launch and now",
    ),
)

CHECKPOINT_FACTS: Final = (
    Fact(
        "checkpoint.present",
        FactKind.TRUTH,
        _ALWAYS,
        "the lineage holds a checkpoint, valid or not",
        "the lineage's directory",
    ),
    Fact(
        "checkpoint.valid",
        FactKind.TRUTH,
        _ALWAYS,
        "at least one of them is complete and undamaged",
        "manifests: sizes and sha256, checked by the runner",
    ),
    Fact(
        "checkpoint.compatible",
        FactKind.TRUTH,
        _ALWAYS,
        "the newest valid one can be loaded by the next attempt",
        "signatures of the manifest compared with those of the next spec",
    ),
    Fact("checkpoint.step", FactKind.WHOLE, _ALWAYS, "step of the newest valid one", "its manifest", least=0),
    Fact(
        "checkpoint.age_s",
        FactKind.NUMBER,
        _ALWAYS,
        "time between its creation and the end of the attempt, or now",
        "its directory's time, not what the manifest says",
        least=0,
        unit="s",
    ),
    Fact("checkpoint.count", FactKind.WHOLE, _ALWAYS, "how many valid ones there are", "manifests", least=0),
    Fact(
        "checkpoint.rejected",
        FactKind.WHOLE,
        _ALWAYS,
        "how many are present and not valid",
        "manifests",
        least=0,
    ),
    Fact(
        "checkpoint.on_demand",
        FactKind.TRUTH,
        _RUNNING,
        "it saves a checkpoint when it is told to stop",
        "the workload: true for those that speak the contract",
    ),
)
