"""What the two sides of the container wall agree on: paths, reports, exit codes, specs.

The only package of ``jobs`` that the host may import, so it needs pydantic and the
standard library alone.  Everything here is language-neutral on disk (JSON files and
directories under ``/job``), so a user's own program may speak it too; the written form
is ``docs/contract.md``.

What a container writes is a hint from an untrusted party: the reading side limits its
size, ignores keys that it does not know and lets it influence its own job only.
"""

from jobs.contract.attempt import AttemptSpec, CheckpointPlan
from jobs.contract.base import BILLION, CONTRACT_VERSION, Report, Spec
from jobs.contract.exit import Cause, ExitCode, Phase
from jobs.contract.paths import (
    CHECKPOINT_NAME,
    JOB_DIR,
    MANIFEST,
    RunPaths,
    checkpoint_name,
    profiles_dir,
)
from jobs.contract.plans import (
    KINDS,
    PLANS,
    STDLIB,
    TRAJECTORY,
    BuiltIn,
    CausalLm,
    GraphForecast,
    ImuStream,
    PairClassifier,
    Plan,
    Program,
    ResidentTransformer,
    TrainingPlan,
)
from jobs.contract.profile import SWITCHES, Profile, thread_count
from jobs.contract.reading import (
    MAX_MANIFEST_BYTES,
    MAX_REPORT_BYTES,
    CheckpointInvalid,
    checkpoints,
    dump,
    file_sha256,
    first_problem,
    open_regular,
    read_limited,
    read_manifest,
    verify,
)
from jobs.contract.reports import (
    Effective,
    FileDigest,
    Manifest,
    Rejected,
    Result,
    Status,
    Switch,
)

__all__ = [
    "BILLION",
    "CHECKPOINT_NAME",
    "CONTRACT_VERSION",
    "JOB_DIR",
    "KINDS",
    "MANIFEST",
    "MAX_MANIFEST_BYTES",
    "MAX_REPORT_BYTES",
    "PLANS",
    "STDLIB",
    "SWITCHES",
    "TRAJECTORY",
    "AttemptSpec",
    "BuiltIn",
    "CausalLm",
    "Cause",
    "CheckpointInvalid",
    "CheckpointPlan",
    "Effective",
    "ExitCode",
    "FileDigest",
    "GraphForecast",
    "ImuStream",
    "Manifest",
    "PairClassifier",
    "Phase",
    "Plan",
    "Profile",
    "Program",
    "Rejected",
    "Report",
    "ResidentTransformer",
    "Result",
    "RunPaths",
    "Spec",
    "Status",
    "Switch",
    "TrainingPlan",
    "checkpoint_name",
    "checkpoints",
    "dump",
    "file_sha256",
    "first_problem",
    "open_regular",
    "profiles_dir",
    "read_limited",
    "read_manifest",
    "thread_count",
    "verify",
]
