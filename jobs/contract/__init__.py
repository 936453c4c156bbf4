"""The contract between the host and the program in the container: paths, reports, exit codes, specs.

This is the only package of ``jobs`` that the host may import, so it depends only on pydantic and the
standard library.  The contract is language-neutral on disk (JSON files and directories under ``/job``),
so a user's own program may implement it, too.  Its specification is ``docs/reference/contract.md``.

The host does not trust what a container writes.  It limits the size, ignores unknown keys, and lets
the content affect only the container's own job.
"""

from jobs.contract.attempt import AttemptSpec as AttemptSpec
from jobs.contract.attempt import CheckpointPlan as CheckpointPlan
from jobs.contract.base import BILLION as BILLION
from jobs.contract.base import CONTRACT_VERSION as CONTRACT_VERSION
from jobs.contract.base import Report as Report
from jobs.contract.base import Spec as Spec
from jobs.contract.exit import Cause as Cause
from jobs.contract.exit import ExitCode as ExitCode
from jobs.contract.exit import Phase as Phase
from jobs.contract.parallel import MAX_PROCESSES as MAX_PROCESSES
from jobs.contract.parallel import MAX_SHARDS as MAX_SHARDS
from jobs.contract.parallel import Parallel as Parallel
from jobs.contract.parallel import Reduction as Reduction
from jobs.contract.paths import BEST_NAME as BEST_NAME
from jobs.contract.paths import CHECKPOINT_NAME as CHECKPOINT_NAME
from jobs.contract.paths import FINAL_NAME as FINAL_NAME
from jobs.contract.paths import JOB_DIR as JOB_DIR
from jobs.contract.paths import MANIFEST as MANIFEST
from jobs.contract.paths import RankPaths as RankPaths
from jobs.contract.paths import RunPaths as RunPaths
from jobs.contract.paths import checkpoint_name as checkpoint_name
from jobs.contract.paths import inside_source as inside_source
from jobs.contract.paths import profiles_dir as profiles_dir
from jobs.contract.plans import KINDS as KINDS
from jobs.contract.plans import PLANS as PLANS
from jobs.contract.plans import STDLIB as STDLIB
from jobs.contract.plans import TRAJECTORY as TRAJECTORY
from jobs.contract.plans import WATCHED as WATCHED
from jobs.contract.plans import WORKLOAD_REGISTRY as WORKLOAD_REGISTRY
from jobs.contract.plans import WORKLOADS as WORKLOADS
from jobs.contract.plans import CheckpointFields as CheckpointFields
from jobs.contract.plans import EarlyStopping as EarlyStopping
from jobs.contract.plans import Lora as Lora
from jobs.contract.plans import Plan as Plan
from jobs.contract.plans import Plateau as Plateau
from jobs.contract.plans import Program as Program
from jobs.contract.plans import ProgramCode as ProgramCode
from jobs.contract.plans import TrainingPlan as TrainingPlan
from jobs.contract.plans import WeightAveraging as WeightAveraging
from jobs.contract.plans import kind_of as kind_of
from jobs.contract.plugins import PluginRegistry as PluginRegistry
from jobs.contract.plugins import load_plugins as load_plugins
from jobs.contract.plugins import plugin_names as plugin_names
from jobs.contract.plugins import plugin_of_type as plugin_of_type
from jobs.contract.profile import SWITCHES as SWITCHES
from jobs.contract.profile import Profile as Profile
from jobs.contract.profile import Trace as Trace
from jobs.contract.profile import excess_workers as excess_workers
from jobs.contract.profile import most_workers as most_workers
from jobs.contract.profile import thread_count as thread_count
from jobs.contract.reading import MAX_MANIFEST_BYTES as MAX_MANIFEST_BYTES
from jobs.contract.reading import MAX_REPORT_BYTES as MAX_REPORT_BYTES
from jobs.contract.reading import CheckpointInvalid as CheckpointInvalid
from jobs.contract.reading import checkpoints as checkpoints
from jobs.contract.reading import dump as dump
from jobs.contract.reading import file_sha256 as file_sha256
from jobs.contract.reading import first_problem as first_problem
from jobs.contract.reading import open_directory as open_directory
from jobs.contract.reading import open_regular as open_regular
from jobs.contract.reading import open_verified_size as open_verified_size
from jobs.contract.reading import read_at_most as read_at_most
from jobs.contract.reading import read_limited as read_limited
from jobs.contract.reading import read_manifest as read_manifest
from jobs.contract.reading import read_manifest_in as read_manifest_in
from jobs.contract.reading import verify as verify
from jobs.contract.reports import Effective as Effective
from jobs.contract.reports import FileDigest as FileDigest
from jobs.contract.reports import Manifest as Manifest
from jobs.contract.reports import OperatorTime as OperatorTime
from jobs.contract.reports import Rejected as Rejected
from jobs.contract.reports import Result as Result
from jobs.contract.reports import Status as Status
from jobs.contract.reports import Switch as Switch
from jobs.contract.reports import TraceSummary as TraceSummary
from jobs.contract.tracking import TRACKER_MODULES as TRACKER_MODULES
from jobs.contract.tracking import TRACKER_PACKAGES as TRACKER_PACKAGES
from jobs.contract.tracking import TRACKERS as TRACKERS
from jobs.contract.tracking import Tracking as Tracking
