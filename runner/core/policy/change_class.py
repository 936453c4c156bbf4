"""The class of a change: what the difference of two revisions does to a training, field by field.

    A  same bits, and nothing faster or slower: logs, limits, how often to save
    B  the same mathematics: other speed, or other rounding
    C  the same state, another trajectory: learning rate, batch, schedule
    D  the weights alone could be kept
    E  no checkpoint fits

The class of a whole change is its worst.  The world is closed: a field that is not in the table
is E, and a test fails when a model gains one.  A checkpoint's signatures (``jobs.checkpoint.signatures``) say
the same from the other side: what must agree there is E here, what should agree is B or C.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from runner.base.units import format_size
from runner.core.policy.facts import FactValue

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"
"""The value of a field as JSON."""

PROGRAM: Final = "program"
"""The kind of workload that leaves no signatures in its checkpoints."""


class ChangeClass(StrEnum):
    """The effect of a change on a checkpoint; later letters are worse."""

    A = "A"
    B = "B"
    C = "C"
    D = "D"
    E = "E"


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The class of a field; ``bits``: a change of it keeps the result to the last bit."""

    kind: ChangeClass
    why: str
    bits: bool = False


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field that differs."""

    name: str
    before: JsonValue
    after: JsonValue
    kind: ChangeClass
    why: str
    bits: bool = False


@dataclass(frozen=True, slots=True)
class RevisionChange:
    """All fields that differ, the worst first."""

    changes: tuple[FieldChange, ...] = ()

    @property
    def kind(self) -> ChangeClass:
        """The class of the whole change; A without any."""
        return max((change.kind for change in self.changes), default=ChangeClass.A)

    @property
    def same_bits(self) -> bool:
        """Return True if the result stays the same to the last bit."""
        return all(change.bits for change in self.changes)

    def facts(self, *, allowed: bool) -> dict[str, FactValue]:
        """Return the facts for the policy."""
        names = tuple(change.name for change in self.changes)
        return {"diff.class": str(self.kind), "diff.fields": names, "diff.allowed": allowed}


@dataclass(frozen=True, slots=True)
class RevisionFields:
    """The fields of a revision by dotted name, and what the classes of some of them depend on."""

    values: Mapping[str, JsonValue]
    kind: str
    dropout: bool = False
    workload: Mapping[str, FieldRule] = field(default_factory=dict)  # rules of the workload's own fields


def classify_change(before: RevisionFields, after: RevisionFields) -> RevisionChange:
    """Return the fields that differ between two revisions, with their classes."""
    names = sorted(before.values.keys() | after.values.keys())
    differing = [name for name in names if _value(before, name) != _value(after, name)]
    changes = [_change(name, before, after) for name in differing]
    return RevisionChange(tuple(sorted(changes, key=lambda change: (-ord(change.kind), change.name))))


def _change(name: str, before: RevisionFields, after: RevisionFields) -> FieldChange:
    entry = classify_field(name, after)
    return FieldChange(name, _value(before, name), _value(after, name), entry.kind, entry.why, entry.bits)


def _value(fields: RevisionFields, name: str) -> JsonValue:
    return fields.values.get(name)


def classify_field(name: str, fields: RevisionFields) -> FieldRule:
    """Return the class of one field in a revision, with the reason."""
    entry = _known(name, fields)
    if entry is None:
        return FieldRule(ChangeClass.E, "nobody knows what this field does to a checkpoint")
    if name == "profile.micro_batch" and fields.dropout:
        return FieldRule(ChangeClass.C, "dropout draws other masks in batches of another size")
    if name in _EVALUATED and any(fields.values.get(each) for each in _DECIDING):
        return FieldRule(ChangeClass.C, "its evaluations decide how fast it learns, or when it ends")
    if name in _PROCESSES and fields.values.get("parallel.shards") is not None:
        exact = fields.values.get("parallel.reduction") == "exact" and not fields.values.get(
            "parallel.sharded"
        )
        return _EXACT if exact else _ROUNDING
    if fields.kind == PROGRAM and entry.kind is ChangeClass.E:
        return FieldRule(
            ChangeClass.C, f"{entry.why}; only its author knows whether its checkpoints still fit"
        )
    if fields.kind == PROGRAM and entry.kind is ChangeClass.B:  # its reason is that of a training
        return FieldRule(ChangeClass.C, "only the program's author knows whether its bits stay the same")
    return entry


def _known(name: str, fields: RevisionFields) -> FieldRule | None:
    section, _, rest = name.partition(".")
    if section == "workload":
        own = PROGRAM_FIELDS if fields.kind == PROGRAM else fields.workload
        return own.get(rest) or TRAINING.get(rest)
    return FIELDS.get(name) or FIELDS.get(f"{section}.*")


# --- The table ----------------------------------------------------------------------------------------

_BOOKS: Final = FieldRule(ChangeClass.A, "only what is written about it", bits=True)
_LIMIT: Final = FieldRule(ChangeClass.A, "only how it is scheduled, limited and tried again", bits=True)
_SAVING: Final = FieldRule(
    ChangeClass.A, "only when and how it saves; the bits do not depend on it", bits=True
)
_CHECKS: Final = FieldRule(ChangeClass.A, "only what is looked at on the way", bits=True)
_EVALUATION: Final = FieldRule(
    ChangeClass.A, "only how it is evaluated; evaluating changes no weights", bits=True
)
_FEEDING: Final = FieldRule(
    ChangeClass.B, "other speed, same bits: batches do not depend on how they are made", bits=True
)
_MEMORY: Final = FieldRule(
    ChangeClass.B, "other speed, same bits: only where things lie in memory", bits=True
)
_KEPT: Final = FieldRule(ChangeClass.B, "other speed, same bits: work that need not be done twice", bits=True)
_ROUNDING: Final = FieldRule(ChangeClass.B, "other rounding of the same mathematics")
_PROCESSES: Final = frozenset({"parallel.processes", "resources.gpus", "resources.nodes"})
_EXACT: Final = FieldRule(
    ChangeClass.B, "other speed, same bits: they depend on parallel.shards alone", bits=True
)
_PLACE: Final = FieldRule(ChangeClass.B, "another machine, or other libraries, round differently")
_SURROUNDINGS: Final = FieldRule(ChangeClass.B, "what it finds around it may choose other kernels")
_PATH: Final = FieldRule(ChangeClass.C, "training goes elsewhere from here on")
_SEED: Final = FieldRule(ChangeClass.C, "another seed draws other batches and masks")
_SHAPE: Final = FieldRule(ChangeClass.E, "parameters of another shape")
_CORPUS: Final = FieldRule(ChangeClass.E, "other data, or data read differently")
_PROGRAM: Final = FieldRule(ChangeClass.E, "another program")

FIELDS: Final[Mapping[str, FieldRule]] = {
    "name": _BOOKS,
    "labels.*": _BOOKS,
    "priority": _LIMIT,
    "policy": _LIMIT,
    "allow": _LIMIT,
    "retry.*": _LIMIT,
    "stop_grace": _LIMIT,
    "resources.cpus": _FEEDING,  # the number of threads that follows from it is profile.threads
    "resources.memory": _LIMIT,
    "resources.shm": _LIMIT,
    "resources.time_limit": _LIMIT,
    "resources.gpus": FieldRule(ChangeClass.C, "another number of devices sums in another order"),
    "executor": _LIMIT,
    "resources.nodes": FieldRule(ChangeClass.C, "another number of processes sums in another order"),
    "parallel.processes": FieldRule(ChangeClass.C, "another number of processes sums in another order"),
    "parallel.shards": FieldRule(ChangeClass.C, "other parts of a batch draw other masks"),
    "parallel.reduction": _ROUNDING,
    "parallel.sharded": _ROUNDING,
    "parallel.timeout": _LIMIT,
    "queue.*": _LIMIT,
    "slurm.*": _LIMIT,
    "devices.*": _PLACE,
    "devices.memory": _LIMIT,
    "devices.linked": _LIMIT,
    "matrix": _LIMIT,  # the file of one job has none; a change of that job keeps what it is part of
    "sweep": _LIMIT,  # as above
    "schedule": _LIMIT,
    "schedule.*": _LIMIT,
    "checkpoint.*": _SAVING,
    "progress.*": _BOOKS,
    "track": _BOOKS,
    "track.*": _BOOKS,
    "accelerator": _PLACE,
    "image.*": _PLACE,
    "environment.*": _SURROUNDINGS,
    "mounts": _SURROUNDINGS,
    "network": FieldRule(ChangeClass.A, "only what it can reach", bits=True),
    "secrets.*": _SURROUNDINGS,
    "secret_env": _SURROUNDINGS,
    "umask": _SURROUNDINGS,
    "seed": _SEED,
    # Switches of the profile
    "profile.precision": _ROUNDING,
    "profile.tf32_matmul": _ROUNDING,
    "profile.tf32_cudnn": _ROUNDING,
    "profile.deterministic": _ROUNDING,
    "profile.cudnn_benchmark": _ROUNDING,
    "profile.compile": _ROUNDING,
    "profile.compile_dynamic": _ROUNDING,
    "profile.compile_fullgraph": _CHECKS,
    "profile.compile_cache": _KEPT,
    "profile.optimizer": _ROUNDING,
    "profile.attention": _ROUNDING,
    "profile.activation_checkpointing": _ROUNDING,
    "profile.micro_batch": FieldRule(ChangeClass.B, "sums in another order"),
    "profile.eval_batch": _EVALUATION,
    "profile.loader_workers": _FEEDING,  # fewer threads with more workers: profile.threads says so
    "profile.loader_prefetch": _FEEDING,
    "profile.loader_persistent": _FEEDING,
    "profile.placement": _MEMORY,
    "profile.non_blocking": _MEMORY,
    "profile.transfer": _MEMORY,
    "profile.clone_batches": _MEMORY,
    "profile.conversion": _KEPT,
    "profile.shared_targets": _ROUNDING,
    "profile.streaming": _MEMORY,
    "profile.stream_buffer": _MEMORY,
    "profile.stream_buffer_memory": _MEMORY,
    "profile.graph_cache": _KEPT,
    "profile.encode_once": _ROUNDING,
    "profile.last_position_only": _ROUNDING,
    "profile.host_checks_every": FieldRule(
        ChangeClass.B, "other speed, same bits: when the loss is looked at", bits=True
    ),
    "profile.anomaly_detection": _CHECKS,
    "profile.memory_log": _CHECKS,
    "profile.memory_log_every": _CHECKS,
    "profile.memory_cleanup_every": _MEMORY,
    "profile.dry_run": _CHECKS,
    "profile.trace": _CHECKS,
    "profile.threads": _ROUNDING,
    "profile.allocator": _MEMORY,
    "profile.launch_blocking": _CHECKS,
    "profile.memory_fraction": _LIMIT,
    "profile.async_save": _SAVING,
    "profile.environment.*": _SURROUNDINGS,
}
"""The fields outside of the workload.  ``SECTION.*`` stands for the other fields of a section."""

TRAINING: Final[Mapping[str, FieldRule]] = {
    "kind": FieldRule(ChangeClass.E, "another workload"),
    "data": _CORPUS,
    "steps": FieldRule(ChangeClass.C, "the learning rate of every later step depends on how many there are"),
    "epochs": FieldRule(ChangeClass.C, "the learning rate of every later step depends on how many there are"),
    "batch_size": _PATH,
    "learning_rate": _PATH,
    "warmup_steps": _PATH,
    "schedule": _PATH,
    "floor": _PATH,
    "weight_decay": _PATH,
    "grad_clip": _PATH,
    "dropout": _PATH,
    "eval_every": _EVALUATION,
    "eval_batches": _EVALUATION,
    "log_every": _BOOKS,
    "init_from": FieldRule(ChangeClass.E, "other weights to begin with, which a resume does not load"),
    "init_map": FieldRule(ChangeClass.E, "other weights to begin with, which a resume does not load"),
    "export": FieldRule(ChangeClass.A, "only how the finished model is written", bits=True),
    "early_stopping": _PATH,
    "lr_plateau": _PATH,
    "swa": _PATH,
    "ema": _PATH,
}
"""The fields that all workloads have."""

_EVALUATED: Final = frozenset({"workload.eval_every", "workload.eval_batches", "profile.eval_batch"})
_DECIDING: Final = ("workload.early_stopping", "workload.lr_plateau")


PROGRAM_FIELDS: Final[Mapping[str, FieldRule]] = {
    "command": _PROGRAM,
    "code": _PROGRAM,
    "launcher": _PROGRAM,
    "processes": FieldRule(ChangeClass.C, "another number of processes sums in another order"),
    "terminal": FieldRule(ChangeClass.A, "where the program reads and writes, and not what it computes"),
}
"""The fields of a program."""


def workload_rules(
    *, data: Iterable[str], shape: Iterable[str], trajectory: Iterable[str], reports: Iterable[str] = ()
) -> Mapping[str, FieldRule]:
    """Return the rules of the fields that a workload adds to those of every training."""
    return {
        **dict.fromkeys(data, _CORPUS),
        **dict.fromkeys(shape, _SHAPE),
        **dict.fromkeys(trajectory, _PATH),
        **dict.fromkeys(reports, _BOOKS),
    }


SIZES: Final = frozenset(
    {"resources.memory", "resources.shm", "devices.memory", "profile.stream_buffer_memory"}
)
"""Fields that hold bytes."""

MAX_SHOWN: Final = 60
"""The longest values that are shown as a whole, in characters."""

MAX_DIFFERENT: Final = 400
"""The most characters that are shown of the part that differs."""

BESIDE: Final = 24
"""The most equal characters that are shown before and after that part."""


def format_change(before: JsonValue, after: JsonValue) -> tuple[str, str]:
    """Return two values as a job file writes them; of long ones, the part that differs."""
    old, new = format_field(before), format_field(after)
    if max(len(old), len(new)) <= MAX_SHOWN:
        return old, new
    first = _count_equal(old, new)
    same = _count_equal(old[first:][::-1], new[first:][::-1])
    begin = max(first - BESIDE, 0)
    begin = (old.find(" ", begin, first) + 1 or begin) if begin else 0  # whole words
    return _part(old, begin, len(old) - same), _part(new, begin, len(new) - same)


def _count_equal(one: str, other: str) -> int:
    """Return the number of equal characters at the beginning of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _part(text: str, begin: int, end: int) -> str:
    """Return a part of a text, with what is beside its end."""
    shown = end + BESIDE
    if shown < len(text) and (space := text.rfind(" ", end, shown)) >= 0:
        shown = space
    shown = min(shown, begin + BESIDE + MAX_DIFFERENT)
    return f"{'…' if begin else ''}{text[begin:shown]}{'…' if shown < len(text) else ''}"


def format_field(value: JsonValue) -> str:
    """Return a value as a job file writes it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(format_field, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {format_field(one)}' for name, one in value.items())}}}"
    return str(value)


def change_rows(found: RevisionChange) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield (field, before, after, class, reason), the worst first."""
    for change in found.changes:
        before, after = (_sized(change.name, value) for value in (change.before, change.after))
        yield change.name, *format_change(before, after), str(change.kind), change.why


def _sized(name: str, value: JsonValue) -> JsonValue:
    """Return a value, with a size as a job file writes it."""
    return format_size(value) if name in SIZES and isinstance(value, int) else value
