"""Names of fields and options in other tools, for the hints in messages."""

from collections.abc import Mapping
from typing import Final

MEANT: Final[Mapping[str, str]] = {
    "amp": "profile.precision",
    "amp_dtype": "profile.precision",
    "use_amp": "profile.precision",
    "tf32": "profile.tf32_matmul",
    "num_workers": "profile.loader_workers",
    "prefetch_factor": "profile.loader_prefetch",
    "persistent_workers": "profile.loader_persistent",
    "pin_memory": "profile.placement",
    "stream_buffer_size": "profile.stream_buffer",
    "gradient_checkpointing": "profile.activation_checkpointing",
    "accumulate_grad_batches": "profile.micro_batch",
    "gradient_accumulation_steps": "profile.micro_batch",
    "max_steps": "workload.steps",
    "max_epochs": "workload.epochs",
    "num_epochs": "workload.epochs",
    "num_train_epochs": "workload.epochs",
    "detect_anomaly": "profile.anomaly_detection",
    "fused_optimizer": "profile.optimizer",
    "env": "environment",
    "volumes": "mounts",
    "tags": "labels",
    "model": "workload",
    "retries": "retry.max_attempts",
    "restart": "retry",
    "timeout": "resources.time_limit",
    "walltime": "resources.time_limit",
    "ram": "resources.memory",
    "shm_size": "resources.shm",
    "device": "accelerator",
    "grace_period": "stop_grace",
    "depends_on": "queue.after",
    "dependency": "queue.after",
    "begin": "queue.not_before",
    "partition": "queue.priority_class",
    "qos": "queue.priority_class",
    "gpu_type": "devices.model",
    "gpu_model": "devices.model",
    "gpu_memory": "devices.memory",
    "array": "matrix",
    "class": "queue.priority_class",
    "cron": "schedule.cron",
}
"""Names in other tools, and the field of the job file that each stands for."""

ENGINE_OPTIONS: Final = frozenset((
    "cap_add", "cap_drop", "cgroup_parent", "device_requests", "devices", "dns", "entrypoint", "extra_hosts",
    "group_add", "hostname", "ipc", "links", "pid", "ports", "privileged",
    "publish", "runtime", "security_opt", "sysctls", "ulimits", "user", "userns_mode", "uts",
))  # fmt: skip
"""Options of container engines, which a job file cannot set."""
