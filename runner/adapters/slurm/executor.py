"""Attempts as batch jobs of a Slurm cluster.

One attempt is one job of Slurm that is never requeued: the policy of the job decides what follows from its
end, and Slurm decides the order of what waits.  Slurm has no idempotent submission (``sbatch`` may report a
time-out and the job runs), so three things make one: the attempt is booked before it is submitted; Slurm is
asked for a job of that name and user before every submission; and the batch script claims the attempt with a
file that only one can make.  The program's exit status is what the script itself has written.

Slurm is asked for all attempts at once and seldom; starts and ends of attempts are seen in their own files.
An answer that does not come is never evidence.

Isolation is that of Slurm: memory and devices are fenced by its control groups where the cluster says so.
"""

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shlex import quote
from signal import SIGKILL, SIGUSR1, SIGUSR2
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from jobs.contract import ExitCode
from runner.adapters.host.clock import SystemClock
from runner.adapters.launch import SIGNALS, attempt_environment, attempt_name, check_request, entry_script
from runner.adapters.slurm.avoided import AvoidedNodes, absent_nodes, node_names
from runner.adapters.slurm.check import explain_refusal
from runner.adapters.slurm.commands import Over, SlurmCommands
from runner.adapters.slurm.options import OF_NODE, SlurmRules, resource_options
from runner.adapters.slurm.queue import QueueAnswer, QueueView
from runner.adapters.slurm.records import (
    Booking,
    SlurmRecord,
    SlurmRecords,
    read_exit,
    read_foreign,
    write_file,
)
from runner.adapters.slurm.states import (
    Missing,
    Row,
    SlurmEvidence,
    StartedTwice,
    alive,
    describe_standing,
    failed_start,
    judge,
    left_alone,
    may_have_failed_to_start,
    parse_accounting,
    parse_drained,
    started_twice,
    was_cancelled_by_person,
)
from runner.base.errors import Unavailable, disk_errors
from runner.base.threads import PeriodicThread
from runner.core.ports.executor import (
    BatchRequest,
    EndReason,
    Gone,
    Key,
    LaunchRefused,
    LaunchRequest,
    LaunchResult,
    Observation,
    OptionsUnfit,
    Unknown,
    Waiting,
)

if TYPE_CHECKING:
    from runner.adapters.slurm.containers import NodeContainers

SCRIPT: Final = Path(__file__).with_name("batch.sh")

NODE_SCRIPTS: Final = ("nodes", "node")
"""Of an attempt with several nodes: what the first one runs, and what each of them runs."""

FILES_S: Final = 0.25
"""Time between two looks of a watch at the files of attempts."""

SOON_S: Final = 0.5
"""The age of an answer of Slurm about what has just been signalled, or has just written its exit status."""

PATIENCE_S: Final = 60.0
"""Longest time until an exit status is visible on a shared file system, or an orphan is found."""

OUTPUT: Final = ".slurm-out"
"""Output of the batch script and Slurm's node, in the attempt's own directory."""

TRIES: Final = 3
"""Slurm calls a job over whose script is just being started; it is signalled again once it has begun."""

CLEAN_START: Final = """\
ulimit -c 0
[ -n "${{RUNNER_CLEAN-}}" ] ||
    exec setpriv --no-new-privs -- env --ignore-environment --default-signal=INT,QUIT \\
        RUNNER_CLEAN=1 {passed} /bin/sh "$0"
unset RUNNER_CLEAN
"""
"""The script starts again without Slurm's environment; the values of the job's own are no arguments, which
everybody on the node could list."""

LOG_OF_NODE: Final = """\
case $RUNNER_NODE in 0) log={directory}/log.txt ;; *) log={directory}/node-$RUNNER_NODE.log.txt ;; esac
"""
"""The first of several nodes writes the log of the attempt; the launchers of the others their own."""

RANK_LOST: Final = int(ExitCode.RANK_LOST)

HARMLESS: Final = frozenset({SIGUSR1, SIGUSR2})
"""Signals that end nothing: an attempt that has not begun does not get them."""


@dataclass(frozen=True, slots=True)
class SlurmExecutorSettings:
    """Place of the records, and the commands by which Slurm is asked."""

    instance: str
    directory: Path
    """Of the records, on a local file system; private to the daemon's user."""
    commands: SlurmCommands = field(default_factory=SlurmCommands)
    rules: SlurmRules = field(default_factory=SlurmRules)
    poll_s: float = 5.0
    """Between two questions to Slurm while attempts wait or run there."""
    path: str = field(default_factory=lambda: os.environ.get("PATH", os.defpath))
    """``PATH`` of the programs."""
    patience_s: float = PATIENCE_S
    containers: "NodeContainers | None" = None
    """Way to run containers on nodes; None: attempts are plain processes."""
    interface: str | None = None
    """Through which processes of several nodes talk; None: the one that leads to the first node."""


class SlurmExecutor:
    """Satisfies ``runner.core.ports.executor.Executor``."""

    kind: Final = "slurm"
    queues: Final = True

    def __init__(self, settings: SlurmExecutorSettings) -> None:
        self.settings = settings
        self.in_container: Final = settings.containers is not None
        self.queue = QueueView(settings.commands)
        self._records = SlurmRecords(settings.directory, settings.instance)
        self._clock = SystemClock()
        self._guard = threading.Lock()
        self._turns: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._avoided = AvoidedNodes(settings.directory / "avoided.json")
        self._missing: dict[Key, float] = {}  # since when Slurm and an attempt's files disagree
        self._begun: dict[Key, float] = {}  # since when its claim is known
        self._ended: set[Key] = set()  # that were observed as such, and are not removed yet
        self._fences_checked = False
        self._accounts = True  # until Slurm says that it has no accounting
        with disk_errors(str(settings.directory)):
            self._records.create_directory()

    # --- launching

    def plan(self, request: LaunchRequest) -> Mapping[str, object]:
        check_request(request)
        return {
            "argv": list(request.argv),
            "sbatch": self._options(request),
            "program": self._program(request, request.run_dir),
        }

    def launch(self, request: LaunchRequest) -> LaunchResult:
        check_request(request)
        self._check_host(request)
        with self._turn(attempt_name(request.key)), disk_errors(f"launch {attempt_name(request.key)}"):
            record = self._records.of(request.key)
            is_new = not record.path.exists()  # nothing was submitted before it was booked
            booking = record.create(request, self._clock.now().timestamp())
            if record.number is None:
                self._check_fences()
                number = None if is_new else self._submitted(record, booking)
                number = number or self._submit(request, booking)
                self.queue.expire()  # earlier answers do not know this job
                record.set_number(number)
        return LaunchResult.ACCEPTED

    def expected_start(self, request: LaunchRequest) -> datetime | None:
        """Return the time at which Slurm would begin an attempt now; None if it does not say."""
        options = ("--test-only", *self._options(request), str(SCRIPT))
        try:
            said = self.settings.commands.ask_loudly("sbatch", *options)
        except (Unavailable, LaunchRefused, Over):
            return None
        found = re.search(r"to start at (\S+)", said)
        if found is None:
            return None
        return max(datetime.fromisoformat(found[1]).replace(tzinfo=UTC), self._clock.now())

    def _submitted(self, record: SlurmRecord, booking: Booking) -> str | None:
        """Return the job that an earlier submission has made, whose number was not noted."""
        claim = record.evidence(booking).claim
        return claim.number if claim is not None else self.queue.named(record.name, booking.uid)

    def _submit(self, request: LaunchRequest, booking: Booking) -> str:
        self._prepare(request, booking)
        paths = (os.fsdecode(booking.attempt_dir), os.fsdecode(booking.place))
        avoided = self._avoided.of(request.key.job_id, self._clock.now().timestamp())
        without = (f"--exclude={','.join(avoided)}",) if avoided else ()
        try:
            said = self._sbatch(request, *without, str(SCRIPT), *paths)
        except LaunchRefused:
            if not avoided:
                raise
            said = self._sbatch(request, str(SCRIPT), *paths)  # there are no others
        return said.strip().partition(";")[0]

    def _sbatch(self, request: LaunchRequest, *more: str) -> str:
        try:
            return self.settings.commands.ask("sbatch", *self._options(request), *more)
        except LaunchRefused as error:
            place, named = explain_refusal(str(error))[0], request.batch and request.batch.options
            if named and getattr(named, place.removeprefix("slurm."), None):  # not the operator's settings
                raise OptionsUnfit(str(error)) from error
            raise

    def _prepare(self, request: LaunchRequest, booking: Booking) -> None:
        """Write what the node reads; only the owner of the job can read it."""
        booking.place.mkdir(mode=0o711, exist_ok=True)
        booking.place.chmod(0o711)
        files = {"program": self._program(request, booking.place)}
        if _nodes(request) > 1:
            files = {"program": self._all_nodes(booking), "one": files["program"]}
            files |= {name: SCRIPT.with_name(f"{name}.sh").read_text() for name in NODE_SCRIPTS}
        if self.settings.containers is None and _nodes(request) == 1:
            files["signals"] = SIGNALS
        if self.settings.containers is not None:
            files["config.json"] = json.dumps(self.settings.containers.bundle(request))
            files["devices"] = SCRIPT.with_name("node_devices.py").read_text()
        for name, text in files.items():
            write_file(booking.place / name, text, 0o400)
            if os.geteuid() == 0:
                os.chown(booking.place / name, request.owner.uid, request.owner.gid)

    def _options(self, request: LaunchRequest) -> list[str]:
        """Return the options of ``sbatch``."""
        owner, output = request.owner, os.fsdecode(request.log.parent / OUTPUT)
        user = [f"--uid={owner.uid}", f"--gid={owner.gid}"] if os.geteuid() == 0 else []
        return [
            *resource_options(request.batch or BatchRequest(request.limits), self.settings.rules),
            "--parsable",
            "--no-requeue",
            "--export=NONE",
            *user,
            f"--job-name={attempt_name(request.key)}",
            f"--comment=runner:{request.job_name}",
            f"--chdir={os.fsdecode(request.run_dir)}",
            f"--output={_escaped(output)}",
            "--open-mode=append",
        ]

    def _all_nodes(self, booking: Booking) -> str:
        """Return the shell script that starts the program on all nodes of the job."""
        srun = shutil.which("srun", path=self.settings.commands.path) or "srun"
        words = ("/bin/sh", os.fsdecode(booking.place / "nodes"), os.fsdecode(booking.attempt_dir))
        return f"exec {' '.join(map(quote, (*words, os.fsdecode(booking.place), srun)))}\n"

    def _program(self, request: LaunchRequest, bundle: Path) -> str:
        """Return the shell script that becomes the program, with nothing of Slurm's environment but GPUs."""
        request = self._with_interface(request)
        if self.settings.containers is not None:
            return self.settings.containers.program(request, bundle)
        variables = {
            "PATH": self.settings.path,
            "LANG": "C.UTF-8",
            **attempt_environment(request, request.run_dir, request.run_dir / "cache"),
        }
        several = _nodes(request) > 1
        kept = ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_JOB_ID"]
        kept += OF_NODE if several else ("SLURMD_NODENAME",)
        passed = " ".join(f'"{name}=${{{name}-}}"' for name in kept)
        entry = entry_script(request.directory or request.run_dir, request.log, request.argv)
        exports = "".join(f"export {name}={quote(value)}\n" for name, value in variables.items())
        log = str(request.log)
        start = " ".join('"$log"' if several and word == log else quote(word) for word in entry)
        place = LOG_OF_NODE.format(directory=quote(str(request.log.parent))) if several else ""
        return f"{CLEAN_START.format(passed=passed)}{exports}{place}exec {start}\n"

    def _with_interface(self, request: LaunchRequest) -> LaunchRequest:
        """Return a request whose processes talk through the interface of the settings."""
        if _nodes(request) == 1 or self.settings.interface is None:
            return request
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        chosen = dict.fromkeys(names, self.settings.interface)
        return replace(request, environment={**chosen, **request.environment})

    def _check_host(self, request: LaunchRequest) -> None:
        if os.geteuid() not in {0, request.owner.uid}:
            raise LaunchRefused(f"cannot run as {request.owner.name}: this daemon is not root")
        if not request.run_dir.is_dir():
            raise LaunchRefused(f"{str(request.run_dir)!r}: no such directory")
        if request.mounts and not self.in_container:
            raise LaunchRefused("plain processes on nodes have no mounts; give the program the host's paths")

    def _check_fences(self) -> None:
        """Check once that Slurm ends all processes of a job.

        Raises:
            LaunchRefused: processes that leave their session would survive, on a node that counts as free.
        """
        if self._fences_checked:
            return
        said = self.settings.commands.ask("scontrol", "show", "config")
        found = re.search(r"^ProctrackType\s*=\s*(\S+)", said, re.MULTILINE)
        if found is not None and found[1] != "proctrack/cgroup":
            fact = f"Slurm tracks processes by {found[1]}, so processes of a job can survive its end"
            raise LaunchRefused(f"{fact}; set ProctrackType=proctrack/cgroup in slurm.conf")
        self._fences_checked = True

    # --- signals

    def signal(self, key: Key, signal: int) -> None:
        """Send a signal to the program alone, SIGKILL to all processes; take what waits out of the queue."""
        record = self._records.of(key)
        with self._turn(record.name), disk_errors(f"signal {record.name}"):
            booking = record.booking()
            number = None if booking is None else self._number(record, booking)
            if booking is None or number is None:
                return
            self.queue.expire()  # it may have begun since the last answer
            before = record.evidence(booking)
            row = self._look_for(number, record, booking)
            seen = record.evidence(booking)
            if row is None or row.ended or seen.exit_code is not None:
                return
            if row.waits and before.claim is not None:
                self._cancel_second_start(record, number)
                return
            if seen.claim is None and signal in HARMLESS:
                return
            waits = row.waits and seen.claim is None
            if seen.claim is None:  # Slurm loses what comes before the script
                write_file(booking.place / "stop", f"{int(signal)}\n", 0o644)
            many = seen.claim is not None and seen.claim.has_many_nodes
            self._scancel(record, row, int(signal), waits=waits, many=many)
            self.queue.expire()

    def _number(self, record: SlurmRecord, booking: Booking) -> str | None:
        """Return the job of a record, also if the daemon was killed before it could note the number."""
        number = record.number or self._submitted(record, booking)
        if number is not None and record.number is None:
            record.set_number(number)
        return number

    def _scancel(self, record: SlurmRecord, row: Row, signal: int, *, waits: bool, many: bool) -> None:
        insisted = record.killed
        if signal == SIGKILL:
            record.set_killed()
        if waits:
            record.set_cancelled(signal)
        number, named = row.number, f"--name={row.name}"  # a number alone may be that of another job by now
        whole = waits or (signal == SIGKILL and insisted)
        how = () if whole else ("--batch", f"--signal={signal}")
        for _ in range(TRIES):
            with suppress(Over):
                self.settings.commands.ask("scancel", named, *how, number)
                if many and signal == SIGKILL:  # other nodes would be asked first, and wait
                    self.settings.commands.ask("scancel", named, f"--signal={signal}", number)
                return
            booking = record.booking()
            seen = None if booking is None else record.evidence(booking)
            if seen is None or seen.claim is None or seen.exit_code is not None:
                return  # it is over, or it will find the stop file when it begins

    # --- looking

    def observe(self) -> tuple[Observation, ...]:
        with disk_errors(str(self.settings.directory)):
            records = list(self._records.all())
        answer: QueueAnswer | Unavailable | None = None
        found: list[Observation] = []
        seen: list[tuple[Booking, SlurmRecord, SlurmEvidence]] = []
        for booking, record in records:
            try:
                seen.append((booking, record, record.evidence(booking)))
            except (OSError, ValueError) as error:
                found.append(Unknown(booking.key, f"the files of its attempt cannot be read: {error}"))
        for booking, record, evidence in seen:
            ended = left_alone(booking.key, evidence)
            if ended is not None:
                found.append(ended)
                continue
            if answer is None:
                answer = self._look(seen)
            observation = self._observation(booking, record, evidence, answer)
            if observation is not None:
                found.append(observation)
        self._ended |= {each.key for each in found if isinstance(each, Gone)}
        return tuple(found)

    def _look_for(self, number: str, record: SlurmRecord, booking: Booking) -> Row | None:
        """Return the job of an attempt."""
        return _row(self._look_at_all(booking), number, record, booking)

    def _living(self, record: SlurmRecord, booking: Booking) -> list[Row]:
        """Return all jobs of an attempt that have not ended: the number in the claim is its user's word."""
        answer = self._look_at_all(booking)
        rows = (_row(answer, number, record, booking) for number in answer.rows)
        return [row for row in rows if row is not None and not row.ended]

    def _look_at_all(self, booking: Booking) -> QueueAnswer:
        """Return an answer about all users: others look into it, too."""
        uids = {booking.uid, *(each.uid for each, _ in self._records.all())}
        return self.queue.look(uids, SOON_S)

    def _look(self, seen: list[tuple[Booking, SlurmRecord, SlurmEvidence]]) -> QueueAnswer | Unavailable:
        """Return the answer of Slurm about all attempts; sooner again if one has ended or was signalled."""
        is_ending = any(each.exit_code is not None or each.killed or each.cancelled for _, _, each in seen)
        try:
            max_age_s = min(SOON_S, self.settings.poll_s) if is_ending else self.settings.poll_s
            return self.queue.look((booking.uid for booking, _, _ in seen), max_age_s, prompt=True)
        except Unavailable as error:
            return error

    def _observation(
        self,
        booking: Booking,
        record: SlurmRecord,
        evidence: SlurmEvidence,
        answer: QueueAnswer | Unavailable,
    ) -> Observation | None:
        key, number = booking.key, record.number
        if evidence.claim is not None and evidence.claim.number != number:
            number = evidence.claim.number  # of two submissions, this is the one that runs
            record.set_number(number)
        if isinstance(answer, Unavailable):
            return Unknown(key, f"{answer}; {describe_standing(number, evidence)}")
        if number is None:
            return None  # the launch is given again
        row = _row(answer, number, record, booking)
        if row is not None and row.ended and evidence.exit_code is None:
            evidence = record.evidence(booking)  # it may have been written since
        if row is not None and row.waits and evidence.claim is not None:
            since_s = self._begun.setdefault(key, time.monotonic())
            if answer.asked_s <= since_s:  # before it began
                return alive(key, evidence)
        known = row
        if row is None and evidence.exit_code is not None:  # the accounting may still know why
            known = self._accounted(booking, record, evidence)
        verdict = judge(key, known if known is not None and known.ended else row, evidence, self._clock.now())
        if isinstance(verdict, Gone) and row is not None and may_have_failed_to_start(row, evidence):
            try:
                why = self._failure_to_start(record, row)
            except Unavailable as error:
                return Unknown(key, f"{error}; job {number} was cancelled, and by whom is not known yet")
            if why is None and was_cancelled_by_person(known := self._accounted(booking, record, evidence)):
                verdict = judge(key, known, evidence, self._clock.now())
            else:  # such as after a node was frozen for a while
                verdict = failed_start(
                    key, row, why or "its script never ran, and no person is known to have cancelled it"
                )
        if isinstance(verdict, Gone):
            verdict = self._with_lost_nodes(booking, evidence, verdict)
        if isinstance(verdict, StartedTwice):
            return self._end_second_start(record, key, number)
        if isinstance(verdict, Missing):
            return self._unexplained(booking, record, evidence, answer)
        self._missing.pop(key, None)
        return verdict

    def _with_lost_nodes(self, booking: Booking, evidence: SlurmEvidence, gone: Gone) -> Gone:
        """Note the nodes that an attempt was lost with: the next attempts of the job avoid them."""
        if evidence.claim is None or gone.key in self._ended:
            return gone
        nodes: tuple[str, ...] = ()
        if gone.reason is EndReason.NODE_FAILED:
            many = evidence.claim.has_many_nodes
            nodes = absent_nodes(self.settings.commands, evidence.claim.node) if many else ()
            nodes = nodes or (() if many else node_names(evidence.claim.node))
        elif gone.exit_code == RANK_LOST:
            nodes = node_names((read_foreign(booking.attempt_dir / ".slurm-lost") or ("",))[0])
        if nodes:
            self._avoided.add(gone.key.job_id, nodes, self._clock.now().timestamp())
        return gone

    def _failure_to_start(self, record: SlurmRecord, row: Row) -> str | None:
        """Return a node's reason for not starting a cancelled job; None: somebody has cancelled it.

        A slurmctld that is killed forgets the jobs of its last seconds and gives their numbers again. A node
        that still has the earlier job refuses the later one, which is cancelled because it is not requeued.

        Raises:
            Unavailable: Slurm does not answer.
        """
        if any(other.name != record.name and other.number == row.number for _, other in self._records.all()):
            return "slurmctld had forgotten an earlier job and has given its number again"
        try:
            said = self.settings.commands.ask(
                "sinfo", "--noheader", "--Node", f"--nodes={row.node}", "--format=%H|%E"
            )
        except (LaunchRefused, Over):
            return None
        why = parse_drained(said, row)
        return None if why is None else f"the node is drained ({why})"

    def _end_second_start(self, record: SlurmRecord, key: Key, number: str) -> Observation:
        """Cancel a job that Slurm is about to start again: the attempt has been started already."""
        try:
            self._cancel_second_start(record, number)
        except (Unavailable, LaunchRefused) as error:
            return Unknown(key, str(error))
        return started_twice(key, number)

    def _cancel_second_start(self, record: SlurmRecord, number: str) -> None:
        record.set_restarted()
        with suppress(Over):
            self.settings.commands.ask("scancel", f"--name={record.name}", number)
        self.queue.expire()

    def _unexplained(
        self, booking: Booking, record: SlurmRecord, evidence: SlurmEvidence, answer: QueueAnswer
    ) -> Observation:
        """Return the state of an attempt that Slurm does not know, or whose exit status is not there."""
        key, number = booking.key, record.number or ""
        since_s = self._missing.setdefault(key, answer.asked_s)
        if _row(answer, number, record, booking) is None:
            known = self._accounted(booking, record, evidence)
            verdict = None if known is None else judge(key, known, evidence, self._clock.now())
            if isinstance(verdict, Gone):
                return verdict
        if time.monotonic() - since_s < self.settings.patience_s:
            why = f"Slurm says nothing of the end of job {number}; waiting for its exit status"
            return alive(key, evidence) if evidence.claim is not None else Waiting(key, why)
        why = f"job {number} is unknown to Slurm, and has left no exit status"
        return Gone(key, None, error=why, never_started=evidence.claim is None)

    def _accounted(self, booking: Booking, record: SlurmRecord, evidence: SlurmEvidence) -> Row | None:
        """Return the job as Slurm's accounting knows it, where there is one."""
        if not self._accounts:
            return None
        since = timedelta(hours=1).total_seconds()
        begins = f"--starttime={_standard_time(booking.submitted_at - since)}"
        how = ("--allocations", "--noheader", "--parsable2", "--format=JobIDRaw,State,ExitCode,UID")
        try:
            said = self.settings.commands.ask("sacct", *how, f"--name={record.name}", begins)
        except LaunchRefused:
            self._accounts = False
            return None
        except Unavailable:
            return None
        node = "" if evidence.claim is None else evidence.claim.node
        return parse_accounting(said, record.number or "", node, record.name)

    # --- forgetting

    def remove(self, key: Key) -> None:
        record = self._records.of(key)
        with self._turn(record.name), disk_errors(f"remove {record.name}"):
            booking = record.booking()
            if booking is None:
                record.remove()
                return
            seen, number = record.evidence(booking), self._number(record, booking)
            for row in [] if number is None else self._living(record, booking):
                has_exited = seen.exit_code is not None or row.number != number
                self._end_after_exit(record, row, key, has_exited=has_exited)
            shutil.rmtree(booking.place, ignore_errors=True)
            record.remove()
            self._missing.pop(key, None)
            self._begun.pop(key, None)
            self._ended.discard(key)

    def _end_after_exit(self, record: SlurmRecord, row: Row, key: Key, *, has_exited: bool) -> None:
        """Cancel a job that is there long after the end of its attempt, which its user can write.

        Raises:
            Unavailable: the attempt has not ended, or Slurm may not have ended it yet.
        """
        if not has_exited:
            raise Unavailable(f"{record.name}: not removed, it still runs; signal it first")
        if row.state == "COMPLETING":
            return
        now_s = time.monotonic()
        if now_s - self._missing.setdefault(key, now_s) < self.settings.patience_s:
            self.queue.expire()
            raise Unavailable(f"{record.name}: not removed, Slurm has not ended it yet")
        with suppress(Over):
            self.settings.commands.ask("scancel", f"--name={row.name}", row.number)

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        before: dict[Key, tuple[bool, bool]] | None = None

        def look() -> None:
            nonlocal before
            with suppress(OSError):
                now = {booking.key: _progress(booking) for booking, _ in self._records.all()}
                is_ending = any(ended and key not in self._ended for key, (_, ended) in now.items())
                if before is not None and (now != before or is_ending):  # Slurm may not have ended it yet
                    wake()
                before = now

        thread = PeriodicThread("slurm-files", FILES_S, look, begin_at_once=True)
        thread.start()

        def stop() -> None:
            thread.stop()
            thread.join(None)

        return stop

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        with self._guard:
            turn = self._turns.setdefault(name, threading.Lock())
        with turn:
            yield


def _row(answer: QueueAnswer, number: str, record: SlurmRecord, booking: Booking) -> Row | None:
    """Return the job of an attempt, also if its user has given it another name."""
    output = os.fsdecode(booking.attempt_dir / OUTPUT)
    return answer.row(number, record.name, booking.uid, (output, _escaped(output)))


def _nodes(request: LaunchRequest) -> int:
    return 1 if request.batch is None else request.batch.nodes


def _progress(booking: Booking) -> tuple[bool, bool]:
    """Return two flags: the attempt has begun, and it has ended.

    Its user may have put anything there: no link is followed, and nothing raises.
    """
    directory = booking.attempt_dir
    return read_foreign(directory / ".slurm-claim") is not None, read_exit(directory) is not None


def _escaped(path: str) -> str:
    """Return a path for ``--output``, where a percent sign begins a pattern and a backslash ends all."""
    return path.replace("%", "%%").replace("\\", "\\\\")


def _standard_time(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(max(unix_s, 0)))
