"""Exit codes, phases and causes of a program that implements the contract."""

from enum import IntEnum, StrEnum


class ExitCode(IntEnum):
    """Exit codes of a program that implements the contract; others mean what the kernel reports."""

    FINISHED = 0
    STOPPED = 75  # stopped on request, checkpoint saved (EX_TEMPFAIL)
    LINEAGE_BUSY = 76  # another process holds the lock of the lineage: try again later
    INVALID_SPEC = 78  # the spec is invalid or does not fit the saved state (EX_CONFIG)
    DO_NOT_RESTART = 93  # the program knows that another attempt is pointless
    SUPERSEDED = 94  # a later attempt has taken the lineage over; nothing more was published
    RANK_LOST = 95  # another process of the attempt does not answer
    REPLICAS_DIFFER = 96  # the processes hold other weights; no checkpoint contains them
    NON_FINITE = 97  # loss or gradient not finite; no checkpoint contains the update
    DEVICE_OUT_OF_MEMORY = 98  # marker written to result.json
    NO_VALID_CHECKPOINT = 99  # checkpoints exist and none is valid; never a silent fresh start


class Phase(StrEnum):
    """The current activity of the program; each phase has its own timeout."""

    INIT = "init"
    DATA = "data"
    COMPILE = "compile"
    TRAIN = "train"
    EVAL = "eval"
    SAVE = "save"
    DRAIN = "drain"


class Cause(StrEnum):
    """The reason why the program ended, as reported by the program in ``result.json``."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    INVALID_SPEC = "invalid_spec"
    NON_FINITE = "non_finite"
    DEVICE_OUT_OF_MEMORY = "device_out_of_memory"
    NO_VALID_CHECKPOINT = "no_valid_checkpoint"
    DISK_FULL = "disk_full"
    LINEAGE_BUSY = "lineage_busy"
    SUPERSEDED = "superseded"
    RANK_LOST = "rank_lost"
    REPLICAS_DIFFER = "replicas_differ"
    EXCEPTION = "exception"
