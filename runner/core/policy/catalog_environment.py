"""The catalogue of facts about devices, effective settings, earlier attempts, requests and changes."""

from typing import Final

from runner.core.policy.facts import DecisionPoint, Fact, FactKind

_EXIT: Final = (DecisionPoint.EXIT,)
_WATCH: Final = (DecisionPoint.WATCH,)
_CHANGE: Final = (DecisionPoint.CHANGE,)
_RUNNING: Final = (DecisionPoint.WATCH, DecisionPoint.CHANGE)
_ALWAYS: Final = (DecisionPoint.EXIT, DecisionPoint.WATCH, DecisionPoint.CHANGE)

PRECISIONS: Final = ("fp16", "bf16", "tf32", "fp32")
"""From the least to the most precise: ``precision: safer`` goes one step to the right."""

DEVICE_FACTS: Final = (
    Fact(
        "device.lost",
        FactKind.TRUTH,
        _ALWAYS,
        "one of its devices no longer answers",
        "NVML: it is lost, or no longer known; Xid 79; AMD: its render node has gone",
    ),
    Fact(
        "device.recovery",
        FactKind.WORD,
        _ALWAYS,
        "what the driver says must be done before a device can be used again",
        "NVML GPU_RECOVERY_ACTION (driver 570 or newer), RESET_REQUIRED, or Xid 154",
        ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"),
    ),
    Fact(
        "device.xid",
        FactKind.WHOLES,
        _ALWAYS,
        "error codes that the driver reported for its devices during the attempt",
        "kernel log, or NVML events where they were listened to from its start",
        least=0,
        most=1000,
    ),
    Fact(
        "device.util",
        FactKind.NUMBER,
        _RUNNING,
        "share of samples in which some kernel was running; says nothing about efficiency",
        "NVML or AMD sysfs, mean over device.window_s, the least busy of its devices",
        least=0,
        most=100,
        unit="%",
    ),
    Fact(
        "device.busiest",
        FactKind.NUMBER,
        _RUNNING,
        "the same, of the busiest of its devices",
        "NVML or AMD sysfs, mean over device.window_s",
        least=0,
        most=100,
        unit="%",
    ),
    Fact(
        "device.window_s",
        FactKind.NUMBER,
        _RUNNING,
        "length of the time that device.util is the mean of",
        "the runner's samples",
        least=0,
        unit="s",
    ),
    Fact(
        "device.memory",
        FactKind.NUMBER,
        _RUNNING,
        "share of the memory of its fullest device in use",
        "NVML or AMD sysfs",
        least=0,
        most=1,
    ),
    Fact(
        "device.intruder",
        FactKind.TRUTH,
        _WATCH,
        "a process that is not the job's uses one of its devices",
        "process lists of the driver; /proc, which says whose a process is; unknown where either is silent",
    ),
    Fact(
        "device.others",
        FactKind.WHOLE,
        _EXIT,
        "other healthy devices that the job may be given",
        "inventory, within what the job was granted",
        least=0,
    ),
)

EFFECTIVE_FACTS: Final = (
    Fact(
        "effective.micro_batch",
        FactKind.WHOLE,
        _ALWAYS,
        "rows in one forward pass",
        "effective.json micro_batch",
        least=1,
        hint=True,
    ),
    Fact(
        "effective.eval_batch",
        FactKind.WHOLE,
        _ALWAYS,
        "rows in one evaluation pass",
        "effective.json, switch eval_batch",
        least=1,
        hint=True,
    ),
    Fact(
        "effective.workers",
        FactKind.WHOLE,
        _ALWAYS,
        "DataLoader workers",
        "effective.json, switch loader_workers",
        least=0,
        hint=True,
    ),
    Fact(
        "effective.precision",
        FactKind.WORD,
        _ALWAYS,
        "arithmetic of the forward pass",
        "effective.json precision",
        PRECISIONS,
        hint=True,
    ),
    Fact(
        "effective.compile",
        FactKind.TRUTH,
        _ALWAYS,
        "torch.compile took effect",
        "effective.json compile_graphs > 0",
        hint=True,
    ),
    Fact(
        "effective.profile",
        FactKind.TEXT,
        _ALWAYS,
        "name of the profile that it runs with",
        "the resolved spec of the attempt",
    ),
    Fact(
        "effective.nodes",
        FactKind.WHOLE,
        _ALWAYS,
        "nodes of a cluster that it runs on together; absent if there is one",
        "the resolved spec of the attempt",
        least=2,
    ),
    Fact(
        "effective.memory",
        FactKind.WHOLE,
        _EXIT,
        "memory that it was given on each of its machines",
        "the job file, and adjustments of it",
        least=1,
        unit="B",
    ),
    Fact(
        "host.memory",
        FactKind.WHOLE,
        _EXIT,
        "memory that one machine has for jobs",
        "the capacity of the daemon; on Slurm memory_bytes of the settings",
        least=1,
        unit="B",
    ),
    Fact(
        "turnable",
        FactKind.TRUTH,
        _EXIT,
        "it has settings that a rule can adjust; false for a program of your own that has reported none",
        "kind of the workload; effective.json",
        hint=True,
    ),
)

ATTEMPT_FACTS: Final = (
    Fact(
        "attempt.n",
        FactKind.WHOLE,
        _ALWAYS,
        "number of the attempt",
        "history of the job",
        least=1,
        derived=True,
    ),
    Fact(
        "attempt.charged",
        FactKind.WHOLE,
        _ALWAYS,
        "attempts before this one that were charged",
        "history of the job",
        least=0,
        derived=True,
    ),
    Fact(
        "attempt.same_root",
        FactKind.WHOLE,
        _EXIT,
        "charged attempts before it, since the last progress, with the same root and effective spec",
        "history of the job",
        least=0,
        derived=True,
    ),
    Fact(
        "attempt.uptime_s",
        FactKind.NUMBER,
        _ALWAYS,
        "running time of this attempt",
        "launch and end, or now",
        least=0,
        unit="s",
        derived=True,
    ),
    Fact(
        "attempt.wall_s",
        FactKind.NUMBER,
        _ALWAYS,
        "running time of all attempts together",
        "history of the job",
        least=0,
        unit="s",
        derived=True,
    ),
)

REQUEST_FACTS: Final = (
    Fact(
        "preempted",
        FactKind.TRUTH,
        _ALWAYS,
        "its devices were, or will be, taken by another job or by the host",
        "scheduler; notice of the host",
    ),
    Fact(
        "deadline.slack_s",
        FactKind.NUMBER,
        _ALWAYS,
        "running time left of the time limit; negative once it has passed",
        "resources.time_limit minus the running time",
        unit="s",
    ),
    Fact(
        "operator.request",
        FactKind.WORD,
        _ALWAYS,
        "what a user or operator has requested",
        "the daemon's API",
        ("none", "cancel", "hold", "restart", "save"),
    ),
    Fact(
        "operator.approved",
        FactKind.TRUTH,
        _CHANGE,
        "a user has approved that this change may lose work",
        "`runner apply --approve`, or an answer to its question",
    ),
)

QUEUE_FACTS: Final = (
    Fact(
        "queue.switches",
        FactKind.WHOLE,
        _ALWAYS,
        "how often the job has been preempted for others so far, with this time",
        "the recorded preemptions",
        least=0,
    ),
    Fact(
        "queue.switch_cost_s",
        FactKind.NUMBER,
        _ALWAYS,
        "what it costs the job to be preempted once: the save, work that is repeated, and the start",
        "the runner's observations of this job; a minute for a start that was not observed",
        least=0,
        unit="s",
    ),
    Fact(
        "queue.attained_s",
        FactKind.NUMBER,
        _ALWAYS,
        "device-seconds that the job has had, by which the order `attained` goes",
        "its recorded allocations, this attempt's included; a CPU counts as cpu_weight devices",
        least=0,
        unit="s",
    ),
)

CHANGE_FACTS: Final = (
    Fact(
        "diff.class",
        FactKind.WORD,
        _CHANGE,
        "what the change does to a checkpoint: A same bits, B other rounding, C other trajectory, "
        "D weights only, E incompatible",
        "fields and signatures of both revisions; an unknown field is E",
        ("A", "B", "C", "D", "E"),
    ),
    Fact("diff.fields", FactKind.WORDS, _CHANGE, "fields that differ, dotted", "both revisions, resolved"),
    Fact(
        "diff.allowed",
        FactKind.TRUTH,
        _CHANGE,
        "the job file allows training to change (class C)",
        "allow: changed_training in the new revision",
    ),
    Fact(
        "econ.resume_gain",
        FactKind.NUMBER,
        _CHANGE,
        "time to the end without the change, divided by the time to the end after resuming with it; "
        "computed at the bounds that are unfavourable to the change",
        "measured rates; unknown until both are measured, and where no checkpoint is saved",
        least=0,
    ),
    Fact(
        "econ.restart_gain",
        FactKind.NUMBER,
        _CHANGE,
        "the same for starting again at step 0",
        "the same",
        least=0,
    ),
    Fact(
        "econ.resume_saves_s",
        FactKind.NUMBER,
        _CHANGE,
        "time to the end without the change, less the time to the end after resuming with it",
        "the same",
        unit="s",
    ),
    Fact(
        "econ.restart_saves_s",
        FactKind.NUMBER,
        _CHANGE,
        "the same for starting again at step 0",
        "the same",
        unit="s",
    ),
    Fact(
        "econ.resume_pays",
        FactKind.TRUTH,
        _CHANGE,
        "resuming ends sooner: econ.resume_gain reaches economics.hurdle, or econ.resume_saves_s "
        "economics.saving; if only one of the two ends within the time limit, that decides",
        "the policy",
        derived=True,
    ),
    Fact(
        "econ.restart_pays",
        FactKind.TRUTH,
        _CHANGE,
        "the same for starting again at step 0",
        "the policy",
        derived=True,
    ),
    *(
        Fact(
            f"econ.{choice}_in_time",
            FactKind.TRUTH,
            _CHANGE,
            f"{what} ends within the time limit of the job, if nothing interrupts it",
            "measured rates, and resources.time_limit; unknown without a limit",
        )
        for choice, what in (
            ("keep", "the job without the change"),
            ("resume", "the job that is resumed with the change"),
            ("restart", "the job that starts again with the change"),
        )
    ),
    Fact(
        "econ.price_s",
        FactKind.NUMBER,
        _CHANGE,
        "what the change costs at the present rate: stop, start, and what is computed again; of a change of "
        "class D or E all that is done",
        "the measured rate of the job; its starts",
        unit="s",
    ),
    Fact(
        "econ.price_share",
        FactKind.NUMBER,
        _CHANGE,
        "econ.price_s, as a share of the time to the end without the change",
        "the same",
        least=0,
    ),
    Fact(
        "econ.best",
        FactKind.WORD,
        _CHANGE,
        "which of the three is expected to end first",
        "measured rates",
        ("keep", "resume", "restart"),
    ),
)
