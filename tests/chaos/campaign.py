"""Kill a daemon at random moments under a mixed load, and list what was lost, doubled, leaked or left over.

    nice -n 19 python -m tests.chaos.campaign --kills 500 [--seed N] [--executor process|docker]

The test of the same name makes one short round.  A round has a state directory of its own, a few threads that
submit, cancel, hold, restart and change jobs, and a loop that kills the daemon.  Afterwards nothing more is
killed, every job has to end as it should, and ``violations`` looks at what lies in the store, on the disk,
in the engine and among the processes of this host.  A seed draws the kill points and what the threads do;
when a thread does it is a matter of the machine, so a seed repeats a round only roughly.
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from images import bases
from images.docker_engine import DockerEngine
from images.log import BuildLog
from images.settings import ImageSettings
from runner.base.errors import RunnerError, Unavailable
from tests.fakes.daemon import fork_server
from tests.fakes.daemon.service import LENDABLE_BYTES, Service, service, until
from tests.fakes.patience import patience
from tests.fakes.workloads.counter_image import counter_image

Executor: TypeAlias = Literal["process", "docker"]

ROUND_KILLS: Final = 25
THREADS: Final = 2
CPUS: Final = 64
"""Of the daemon of a round: more than this host has, as most jobs sleep."""

UNFINISHED: Final = 10
"""Jobs of the load that may be unfinished at once: all of them have to end after the last kill."""

LONGEST_S: Final = 1.2
"""Between two kills."""

START_S: Final = 0.5
"""Within this time of its start a daemon is killed that shall not come to answer."""

SHORT: Final = frozenset({"succeeded"})
CRASHES: Final = frozenset({"failed"})
ENDED_BY_HAND: Final = frozenset({"cancelled", "succeeded"})

WORK: Final = """\
exec 9>>"$RUNNER_JOB_DIR/cache/lock"
flock -n 9 || { echo busy >> "$RUNNER_JOB_DIR/cache/starts"; exit 93; }
echo "$RUNNER_ATTEMPT" >> "$RUNNER_JOB_DIR/cache/starts"
sleep "$1" 9>&- &
trap 'kill $!; exit 143' TERM
wait $!
exit "$2"
"""
"""A program that notes its start, and a second one at the same time, and sleeps."""

TRAINING: Final = {"dropout": 0.1, "eval_batches": 1}
TRAINING_STEPS: Final = 120
SMALL: Final = {"cpus": 1, "memory": "64MiB"}
CHANGED: Final = {"cpus": 1, "memory": "128MiB"}


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected result of a submission."""

    outcomes: frozenset[str]
    ids: tuple[str, ...] = ()
    acknowledged: bool = True
    copies: int = 1


@dataclass
class Load:
    """Requests of people to one daemon while it is killed."""

    daemon: Service
    executor: Executor
    expected: dict[str, Expected] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    _open: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _number: int = 0

    def __post_init__(self) -> None:
        code = self.daemon.root / "code"
        code.mkdir(mode=0o755)
        (code / "work.sh").write_text(WORK)
        secret = self.daemon.root / "token"
        secret.write_text("hush")
        secret.chmod(0o644)

    def act(self, draw: random.Random) -> None:
        """Do one thing that people do; what the daemon did not answer may have been done."""
        actions: tuple[tuple[Callable[[random.Random], None], int], ...] = (
            (self._short, 5),
            (self._matrix, 1),
            (self._crashing, 1),
            (self._dependent, 1),
            (self._long, 3),
            (self._cancel, 3),
            (self._hold, 1),
            (self._release, 1),
            (self._restart, 1),
            (self._change, 1),
            (self._kill_attempt, 1),
        )
        chosen = draw.choices([each for each, _ in actions], [weight for _, weight in actions])[0]
        if len(self._open) >= UNFINISHED:
            chosen = self._forget_finished
        self.done[chosen.__name__.strip("_")] += 1
        with suppress(RunnerError):  # killed while it was asked, or there is nothing to do any more
            chosen(draw)

    # --- submissions

    def submit(self, kind: str, outcomes: frozenset[str], *, copies: int = 1, **fields: Any) -> None:
        """Submit a job with a name of its own; it counts as unknown while no daemon has answered."""
        with self._lock:
            self._number += 1
            name = f"{kind}-{self._number}"
            self.expected[name] = Expected(outcomes, acknowledged=False, copies=copies)
        path = self._file(kind, name, **fields)
        answer = self.daemon.client.submit(str(path), path.read_bytes(), None)
        ids = tuple(str(job["id"]) for job in answer["jobs"])
        with self._lock:
            self.expected[name] = Expected(outcomes, ids, copies=copies)
            self._open += ids

    def _file(self, kind: str, name: str, **fields: Any) -> Path:
        secrets = {"secrets": {"token": str(self.daemon.root / "token")}}
        if kind == "train":
            return self.daemon.training(
                name, TRAINING_STEPS, policy=self.daemon.tireless(), workload=TRAINING, **fields
            )
        if self.executor == "docker":
            told = {"long": {"STAY_AT": "2"}, "crashing": {"CRASH_AT": "2"}}.get(kind, {})
            environment = {"PERIOD_S": "0.02", **told}
            more: dict[str, Any] = {**secrets, **fields, "environment": environment}
            return self.daemon.counting(name, 1000 if kind == "long" else 3, **more)
        sleeps, code = ("60" if kind == "long" else "0.1"), ("3" if kind == "crashing" else "0")
        workload = {
            "kind": "program",
            "command": ["/bin/sh", "work.sh", sleeps, code],
            "code": str(self.daemon.root / "code"),
        }
        return self.daemon.file(
            name,
            workload=workload,
            **{"resources": SMALL, "retry": {"backoff": "0s"}, **secrets, **fields},
        )

    def _short(self, _draw: random.Random) -> None:
        self.submit("short", SHORT)

    def _matrix(self, _draw: random.Random) -> None:
        self.submit("matrix", SHORT, copies=3, matrix={"values": {"seed": [1, 2, 3]}})

    def _crashing(self, _draw: random.Random) -> None:
        self.submit("crashing", CRASHES, retry={"backoff": "0s", "max_attempts": 2})

    def _dependent(self, draw: random.Random) -> None:
        if not self._open:
            raise Unavailable("there is no job to wait for")
        before = draw.choice(self._open)
        self.submit("dependent", SHORT, queue={"after": [{"job": before, "condition": "any"}]})

    def _long(self, _draw: random.Random) -> None:
        self.submit("long", ENDED_BY_HAND, policy=self.daemon.tireless())

    # --- what is done to them

    def _cancel(self, draw: random.Random) -> None:
        self.daemon.client.act(self._a_long_one(draw), "cancel", {})

    def _hold(self, draw: random.Random) -> None:
        self.daemon.client.act(self._a_long_one(draw), "hold", {})

    def _release(self, draw: random.Random) -> None:
        self.daemon.client.act(self._a_long_one(draw), "release", {})

    def _restart(self, draw: random.Random) -> None:
        self.daemon.client.act(
            self._a_long_one(draw), "restart", {"from": draw.choice(["checkpoint", "scratch"])}
        )

    def _change(self, draw: random.Random) -> None:
        """Give a long job another environment, for which its attempt is stopped and resumed."""
        job_id = self._a_long_one(draw)
        name = next(name for name, each in self.expected.items() if job_id in each.ids)
        path = self._file("long", name, policy=self.daemon.tireless(), resources=CHANGED)
        body = {
            "path": str(path),
            "text_b64": b64encode(path.read_bytes()).decode(),
            "job": job_id,
            "approve": True,
        }
        self.daemon.client.post("/v1/apply", body)

    def _kill_attempt(self, draw: random.Random) -> None:
        self.kill_attempt(self._a_long_one(draw))

    def kill_attempt(self, job_id: str) -> None:
        """End the program of a job from outside of the runner, with everything that it has started."""
        if self.executor == "docker":
            with suppress(ValueError, AssertionError, ProcessLookupError, IndexError):
                self.daemon.signal_container(job_id, signal.SIGKILL)
            return
        for pid in processes_below(self.daemon.state / "jobs" / job_id):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL) if os.getpgid(pid) == pid else os.kill(pid, signal.SIGKILL)

    def _a_long_one(self, draw: random.Random) -> str:
        ids = [i for name, each in dict(self.expected).items() if name.startswith("long") for i in each.ids]
        unfinished = [job_id for job_id in ids if job_id in self._open]
        if not unfinished:
            raise Unavailable("no long job is unfinished")
        return draw.choice(unfinished)

    def _forget_finished(self, draw: random.Random) -> None:
        """Make room for others; a long job is cancelled."""
        running = set(unfinished(self.daemon))
        with self._lock:
            self._open[:] = [job_id for job_id in self._open if job_id in running]
        if len(self._open) >= UNFINISHED:
            self._cancel(draw)


@dataclass
class Round:
    """Some kills of one daemon, and what was found after them."""

    seed: str
    kills: int
    executor: Executor
    counter: str | None = None
    """The image of jobs in containers."""
    reference: str | None = None
    """The hash of an undisturbed training's weights; None: nothing is trained."""
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    _training: str | None = None

    def run(self) -> None:
        """Make the round; what is wrong afterwards is in ``problems``."""
        draw = random.Random(self.seed)  # noqa: S311  kill points, no secrets
        with service(**settings_of(self.executor, self.counter)) as daemon:
            daemon.start()
            load, over = Load(daemon, self.executor), threading.Event()
            threads = [
                threading.Thread(target=self._go_on, args=(load, over, random.Random(f"{self.seed}-{n}")))  # noqa: S311
                for n in range(THREADS)
            ]
            for thread in threads:
                thread.start()
            try:
                for _ in range(self.kills):
                    self._kill_once(load, draw)
            finally:
                over.set()
                for thread in threads:
                    thread.join()
            self._settle(load)
            self.problems += violations(load, self.reference)
            self.counts.update(load.done)
            if self.problems:
                self.problems.append(daemon.log_tail())

    def _go_on(self, load: Load, over: threading.Event, draw: random.Random) -> None:
        while not over.wait(draw.uniform(0.0, 0.15)):
            try:
                load.act(draw)
            except Exception as error:  # noqa: BLE001  a thread of the load that dies would go unnoticed
                self.problems.append(f"the load: {error!r}")

    def _kill_once(self, load: Load, draw: random.Random) -> None:
        """Kill the daemon, at times with an attempt or with the next one as it starts; start another."""
        daemon = load.daemon
        threading.Event().wait(draw.uniform(0.0, LONGEST_S))
        if self.reference:
            self._keep_training(load, draw)
        daemon.kill()
        self.counts["kills"] += 1
        if draw.random() < 0.2:
            self._kill_while_it_starts(daemon, draw.uniform(0.0, START_S))
        daemon.start()

    def _kill_while_it_starts(self, daemon: Service, after_s: float) -> None:
        child = fork_server.born(
            "runner.cli.main", "serve", "--state-dir", str(daemon.state),
            environ=daemon.environ, log=daemon.state / "daemon.log",
        )  # fmt: skip
        child.join(after_s)
        child.kill()
        child.join()
        child.close()
        self.counts["kills while starting"] += 1

    def _keep_training(self, load: Load, draw: random.Random) -> None:
        """Have one training at any time, and count the kills that meet it."""
        with suppress(RunnerError):
            job = load.daemon.client.job(self._training) if self._training else None
            if job is None or job["state"] == "finished":
                load.submit("train", SHORT)
                self._training = next(each.ids[0] for each in reversed(load.expected.values()) if each.ids)
            elif job["state"] == "running":
                self.counts["kills during a training"] += 1
                if draw.random() < 0.3:
                    load.kill_attempt(self._training or "")
                    self.counts["trainings killed"] += 1

    def _settle(self, load: Load) -> None:
        """Ask all that would last for its end, and wait for the end of everything."""
        for name, each in load.expected.items():
            for job_id in each.ids:
                if name.startswith("long"):
                    load.daemon.client.act(job_id, "cancel", {})
                elif load.daemon.state_of(job_id) == "held":
                    self.problems.append(f"{name}: is held: {load.daemon.told(job_id)}")
        for job_id, name in unfinished(load.daemon).items():
            if name.startswith("long"):  # of a submission that nobody answered
                load.daemon.client.act(job_id, "cancel", {})
        left = partial(unfinished, load.daemon)
        until(lambda: not left(), "all jobs end", 120, more=lambda: f"{left()} {self._stories(load)}")

    def _stories(self, load: Load) -> str:
        return "\n".join(load.daemon.told(job_id)[-2000:] for job_id in unfinished(load.daemon))


def unfinished(daemon: Service) -> dict[str, str]:
    """Return the names of the jobs that have not ended, by id."""
    return {str(job["id"]): job["name"] for job in daemon.client.jobs() if job["state"] != "finished"}


def settings_of(executor: Executor, counter: str | None) -> dict[str, Any]:
    """Return the settings of the daemon of a round."""
    return {
        "executor": executor,
        "observe_every_s": 0.1,
        "cpus": CPUS,
        "allowed_images": {"counter": counter} if counter else {},
    }


# --- what must not be


def violations(load: Load, reference: str | None = None) -> list[str]:
    """Return the jobs and things lost, doubled, leaked or left over now that all jobs have ended."""
    daemon = load.daemon
    found = [*_lost_or_doubled(load), *_wrong_ends(load, reference)]
    deadline = time.monotonic() + patience(120)
    while left_over(daemon) and time.monotonic() < deadline:
        threading.Event().wait(0.2)
    found += [f"left over: {each}" for each in left_over(daemon)]
    found += _leaked(daemon)
    found += _all_can_be_lent(load)
    if "Traceback" in daemon.daemon_log():
        found.append(f"a traceback in the log: {daemon.daemon_log().partition('Traceback')[2][:3000]}")
    return found


def _lost_or_doubled(load: Load) -> Iterator[str]:
    jobs = load.daemon.client.jobs(everything=True)
    names = Counter(_submission(str(job["name"]), load.expected) for job in jobs)
    for name, each in load.expected.items():
        wanted = {each.copies} if each.acknowledged else {0, each.copies}
        if names.pop(name, 0) not in wanted:
            ids = [job["id"] for job in jobs if job["name"].startswith(name)]
            yield f"{name}: of it there should be {wanted}, and there are {ids}"
    yield from (f"{name}: nobody submitted it" for name in names)


def _submission(name: str, known: dict[str, Expected]) -> str:
    """Return the submission of a job; those of a matrix have its name and a number."""
    return name if name in known else name.rpartition("-")[0]


def _wrong_ends(load: Load, reference: str | None) -> Iterator[str]:
    daemon = load.daemon
    for summary in daemon.client.jobs(everything=True):
        job_id = str(summary["id"])
        job = daemon.job(job_id)
        expected = load.expected.get(_submission(job["name"], load.expected))
        if expected and job["outcome"] not in expected.outcomes:
            yield f"{job['name']} ({job_id}): {job['outcome']}: {daemon.told(job_id)}"
        if any(attempt["cause"] == "vanished" for attempt in job["attempts"]):
            yield f"{job['name']} ({job_id}): an attempt vanished: {daemon.told(job_id)}"
        yield from (f"{job['name']} ({job_id}): {problem}" for problem in _starts(daemon, job_id, job))
        if job["name"].startswith("train") and reference:
            weights = _weights(daemon, job_id, job)
            if weights != reference:
                yield f"{job['name']} ({job_id}): other bits: {weights}, not {reference}"


def _starts(daemon: Service, job_id: str, job: dict[str, Any]) -> Iterator[str]:
    """Yield the faults in the starts that the programs of a job have noted."""
    file = daemon.paths(job_id).cache / "starts"
    if not file.exists():
        return
    noted = file.read_text().split()
    if "busy" in noted:
        yield f"two attempts at the same time: {noted}"
    if len(set(noted)) != len(noted):
        yield f"an attempt was started twice: {noted}"
    known = {str(attempt["number"]) for attempt in job["attempts"]}
    if not set(noted) - {"busy"} <= known:
        yield f"attempts ran that are not recorded: {noted}, recorded {sorted(known)}"


def _weights(daemon: Service, job_id: str, job: dict[str, Any]) -> str | None:
    result = daemon.paths(job_id, job["attempts"][-1]["number"]).result
    return str(json.loads(result.read_text())["weights_sha256"]) if result.exists() else None


def left_over(daemon: Service) -> list[str]:
    """Return what should not be there after the end of all jobs: files, mounts, processes, containers."""
    jobs, records = daemon.state / "jobs", daemon.state / "processes"
    drafts = [*jobs.glob("*/.*.draft"), *jobs.glob("*/*/.*.draft")]
    kept = records.iterdir() if records.exists() else ()
    files = [*jobs.glob("*/secrets"), *drafts, *kept, *missing_decisions(daemon)]
    found = [str(path.relative_to(daemon.state)) for path in files]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line.split()[4]}" for line in mounts if f" {daemon.root}/" in line]
    found += [f"process {pid}" for pid in processes_below(jobs)]
    return found + [f"container {each['Name']}" for each in containers(daemon)]


def containers(daemon: Service) -> list[dict[str, Any]]:
    return daemon.containers() if daemon.settings["executor"] == "docker" else []


def missing_decisions(daemon: Service) -> list[Path]:
    """Return the copies of decisions that the store has and the run directories lack."""
    with closing(sqlite3.connect(daemon.state / "store.db")) as store:
        ends = store.execute(
            "SELECT DISTINCT job_id, attempt FROM decisions WHERE moment = 'exit'"
        ).fetchall()
    paths = [daemon.state / "jobs" / str(job) / "attempts" / f"{attempt}.exit.json" for job, attempt in ends]
    return [path for path in paths if not path.exists()]


def processes_below(directory: Path) -> list[int]:
    """Return the processes whose environment names a directory, as that of every program does."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _belongs(path, os.fsencode(directory))]


def _belongs(process: Path, directory: bytes) -> bool:
    try:
        values = (process / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False
    named = (b"RUNNER_JOB_DIR=" + directory, b"HOME=" + directory)
    return any(value in named or value.startswith(tuple(name + b"/" for name in named)) for value in values)


def _leaked(daemon: Service) -> Iterator[str]:
    """Yield what is still lent, and what SQLite finds wrong with the store."""
    with closing(sqlite3.connect(daemon.state / "store.db")) as store:
        for row in store.execute("SELECT job_id, attempt FROM lendings WHERE ended_at IS NULL"):
            yield f"still lent to attempt {row[1]} of job {row[0]}"
        [(integrity,)] = store.execute("PRAGMA integrity_check")
        if integrity != "ok":
            yield f"the store: {integrity}"


def _all_can_be_lent(load: Load) -> Iterator[str]:
    """A job that wants all memory starts only if no attempt holds a part of it any more."""
    load.submit("short", SHORT, resources={"cpus": 1, "memory": LENDABLE_BYTES})
    [job_id] = list(load.expected.values())[-1].ids
    done, job = load.daemon.client.wait(job_id, patience(120))
    if not done or job["outcome"] != "succeeded":
        yield f"not everything can be allocated: {job['state']}: {load.daemon.client.why(job_id)['why']}"


# --- the program


def train_undisturbed() -> str:
    """Return the hash of the weights of a training that nobody kills."""
    with service(**settings_of("docker", None)) as daemon:
        daemon.start()
        load = Load(daemon, "docker")
        load.submit("train", SHORT)
        [job_id] = load.expected["train-1"].ids
        weights = _weights(daemon, job_id, daemon.ends(job_id))
        assert weights is not None, daemon.told(job_id) + daemon.log(job_id)
        return weights


def rounds(kills: int, seed: int, executor: Executor, counter: str | None) -> Iterator[Round]:
    """Make rounds until there have been so many kills; with containers, there is always a training."""
    reference = train_undisturbed() if executor == "docker" else None
    done = 0
    while done < kills:
        at_once = min(ROUND_KILLS, kills - done)
        made = Round(f"{seed}-{done}", at_once, executor, counter, reference)
        try:
            made.run()
        except (AssertionError, RunnerError) as error:
            made.problems.append(f"{type(error).__name__}: {error}")
        yield made
        done += at_once


@contextmanager
def _counter(executor: Executor) -> Iterator[str | None]:
    """Have the image that jobs of containers run in."""
    if executor == "process":
        yield None
        return
    engine = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    with BuildLog(Path(os.devnull)) as log:
        base = bases.resolve(DockerEngine(engine), ImageSettings(engine_url=engine), log).id
    with counter_image(engine, base) as made:
        yield made


def main() -> int:
    """Kill as often as asked, print each round and the counts, and return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.campaign", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    parser.add_argument("--executor", choices=("process", "docker"), default="process")
    asked = parser.parse_args()
    say(f"seed {asked.seed}")
    total: Counter[str] = Counter()
    wrong = 0
    with _counter(asked.executor) as counter:
        for made in rounds(asked.kills, asked.seed, asked.executor, counter):
            total.update(made.counts)
            wrong += bool(made.problems)
            say(f"round {made.seed}: {made.counts['kills']} kills, {len(made.problems)} problems")
            for problem in made.problems:
                say(f"  {problem}")
    say(json.dumps({"seed": asked.seed, "rounds with problems": wrong, **total}))
    return 1 if wrong else 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
