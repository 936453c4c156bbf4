"""The causes of the end of an attempt.

``runner.core.job.exit_cause`` finds the cause of an end, and the fact ``cause`` has these values.
``jobs.contract.Cause`` has those that a program reports itself; a test compares the two.
"""

from enum import StrEnum


class ExitCause(StrEnum):
    """Cause of the end of an attempt."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    INVALID_SPEC = "invalid_spec"
    DO_NOT_RESTART = "do_not_restart"
    NON_FINITE = "non_finite"
    DEVICE_OUT_OF_MEMORY = "device_out_of_memory"
    NO_VALID_CHECKPOINT = "no_valid_checkpoint"
    HOST_OOM = "host_oom"
    SHARED_MEMORY = "shared_memory"
    KILLED = "killed"
    TERMINATED = "terminated"
    SEGFAULT = "segfault"
    BUS_ERROR = "bus_error"
    ABORTED = "aborted"
    ARITHMETIC_ERROR = "arithmetic_error"
    ILLEGAL_INSTRUCTION = "illegal_instruction"
    NOT_EXECUTABLE = "not_executable"
    NOT_FOUND = "not_found"
    DISK_FULL = "disk_full"
    LINEAGE_BUSY = "lineage_busy"
    SUPERSEDED = "superseded"
    RANK_LOST = "rank_lost"
    REPLICAS_DIFFER = "replicas_differ"
    USAGE_ERROR = "usage_error"  # this and the following: told by the end of the log
    ACCESS_DENIED = "access_denied"
    NOT_PERMITTED = "not_permitted"
    NETWORK = "network"
    PORT_IN_USE = "port_in_use"
    TOO_MANY_FILES = "too_many_files"
    IO_ERROR = "io_error"
    CHECKPOINT_MISFIT = "checkpoint_misfit"
    CHECKPOINT_UNREADABLE = "checkpoint_unreadable"
    DEVICE_ERROR = "device_error"
    DEVICE_FAULT = "device_fault"
    DEVICE_ASSERT = "device_assert"
    DEVICE_UNAVAILABLE = "device_unavailable"
    DEVICE_UNSUPPORTED = "device_unsupported"
    EXCEPTION = "exception"
    NO_RESULT = "no_result"
    VANISHED = "vanished"
    LAUNCH_FAILED = "launch_failed"
    NOT_STARTED = "not_started"
    PREEMPTED = "preempted"  # this and the following: by an engine with a queue of its own
    NODE_FAILED = "node_failed"
    OUT_OF_TIME = "out_of_time"
    CANCELLED_ELSEWHERE = "cancelled_elsewhere"
    STARTED_TWICE = "started_twice"
