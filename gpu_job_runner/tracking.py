"""Writes the metrics of a training to TensorBoard files and to a run of MLflow as well.

A killed attempt leaves neither a doubled nor a missing step.  Both trackers rest on ``metrics.jsonl``, which
each attempt appends to, and on ``tracking.json`` in the lineage, which says where each attempt began.

- TensorBoard: each attempt writes one event file, named after the attempt.  It begins with the step from
  which earlier values no longer count, and TensorBoard drops those.  Each value goes to the kernel at once.
- MLflow: a process beside the training sends what ``metrics.jsonl`` says and the run lacks.  It asks the run
  for the steps that it has, because MLflow can take no value back.  A slow or absent server never holds the
  training up; what it has missed is sent by the next attempt.

This module is one file that needs only the standard library and Python 3.8 or newer, besides ``tensorboardX``
or ``mlflow-skinny`` where they are asked for.  Copy it beside ``attach.py`` if you copy that.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

STARTS = "tracking.json"
RUN = "mlflow.json"
LOCK = ".mlflow.lock"
"""Files of the lineage: where each attempt began; the run of MLflow, and for which attempt it was made; the
lock of the process that sends."""

METRICS = "metrics.jsonl"
BATCH = 1000
"""Values of one request, the most that MLflow takes."""

POLL_S = 1.0
RETRY_S = 15.0
LEAVE_S = {"FINISHED": 60.0, "FAILED": 10.0, "SCHEDULED": 3.0}
"""Wait of an attempt at its end for what is still to be sent.  A stopped one has little time left to
leave, and the next attempt sends what is missing."""

EOF_WAIT_S = 10.0
"""The same for a training that was killed."""


class Place(NamedTuple):
    """The attempt whose metrics are tracked."""

    job_id: str
    attempt: int
    lineage_dir: Path
    attempt_dir: Path
    home: Path
    is_chosen: bool = False  # its first step was chosen by hand: the values behind it are another curve


class Trackers:
    """The trackers of one attempt."""

    def __init__(self, wanted: Mapping[str, Any], place: Place, params: Mapping[str, Any]) -> None:
        self._wanted, self._place, self._params = wanted, place, params
        self._early: list[Mapping[str, Any]] = []
        self._board: _TensorBoard | None = None
        self._mlflow: _MlflowProcess | None = None
        self.begun = False

    def begin(self, step: int) -> None:
        """Begin after ``step``, which is 0 or that of the checkpoint that was loaded."""
        self.begun = True
        place = self._place
        with _tolerated("tracking"):
            _note_start(place, step)
        if self._wanted.get("tensorboard"):
            with _tolerated("tensorboard"):
                self._board = _TensorBoard(place.home / "tensorboard", place.attempt, step)
        if self._wanted.get("mlflow"):
            with _tolerated("mlflow"):
                self._mlflow = _MlflowProcess(self._wanted, place, self._params)
        for row in self._early:
            self.add(row)
        self._early = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Track a line of ``metrics.jsonl``, which is written already."""
        if not self.begun:
            self._early.append(row)
        elif self._board is not None:
            with _tolerated("tensorboard", self._forget_board):
                self._board.add(row)

    def _forget_board(self) -> None:
        if self._board is not None:
            self._board.close()
        self._board = None

    def end(self, status: str, step: int) -> None:
        """End with a status of MLflow: ``FINISHED``, ``FAILED``, or ``SCHEDULED`` if another attempt follows.

        ``step`` is the last one, which counts if the attempt has found the training finished.
        """
        if not self.begun and status == "FINISHED":
            self.begin(step)
        if self._board is not None:
            with _tolerated("tensorboard"):
                self._board.close()
        if self._mlflow is not None:
            self._mlflow.close(status)


class _TensorBoard:
    """The event file of one attempt."""

    def __init__(self, directory: Path, attempt: int, step: int) -> None:
        events = importlib.import_module("tensorboardX.proto.event_pb2")
        summaries = importlib.import_module("tensorboardX.proto.summary_pb2")
        records = importlib.import_module("tensorboardX.record_writer")
        self._event, self._summary = events.Event, summaries.Summary
        records.register_writer_factory(_Unbuffered.PREFIX, _Unbuffered())
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a run in the order of their names.
        file = directory / f"events.out.tfevents.{attempt:010d}.runner"
        self._records = records.RecordWriter(f"{_Unbuffered.PREFIX}:{file}")
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        if attempt > 1:
            start = events.SessionLog(status=events.SessionLog.START)
            self._write(self._event(wall_time=time.time(), step=step + 1, session_log=start))

    def add(self, row: Mapping[str, Any]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in _values(row)]
        if values:
            summary = self._summary(value=values)
            self._write(self._event(wall_time=row["time"], step=row["step"], summary=summary))

    def close(self) -> None:
        self._records.close()

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())


class _Unbuffered:
    """Opens event files so that a killed process loses nothing; tensorboardX itself would sync each value."""

    PREFIX = "unbuffered"

    def open(self, path: str) -> Any:
        return Path(path.partition(":")[2]).open("wb", buffering=0)

    def directory_check(self, path: str) -> None:
        """Do nothing: the directory is there."""


class _MlflowProcess:
    """The process that sends metrics to MLflow.

    It is one of its own because MLflow draws random numbers and starts threads, which must not touch those
    of the training.
    """

    def __init__(self, wanted: Mapping[str, Any], place: Place, params: Mapping[str, Any]) -> None:
        task = {
            "uri": wanted["mlflow"],
            "name": wanted.get("name") or place.job_id,
            "params": {name: str(value)[:500] for name, value in params.items()},
            **json.loads(json.dumps(place._asdict(), default=str)),
        }
        argv = [sys.executable, str(Path(__file__).resolve()), json.dumps(task)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=2)

    def close(self, status: str) -> None:
        assert self._process.stdin is not None  # noqa: S101  (it is a pipe)
        with contextlib.suppress(OSError):  # it has left already, and has said why
            self._process.stdin.write(f"{status} {LEAVE_S[status]}".encode())
            self._process.stdin.close()
        try:
            self._process.wait(LEAVE_S[status] + POLL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            follows = status == "SCHEDULED"
            step = "the next attempt sends it" if follows else "metrics.jsonl of the attempt has it"
            say(f"warning: mlflow: not everything is sent yet; {step}")


# --- What has been reported


def _note_start(place: Place, step: int) -> None:
    """Keep at which step this attempt begins."""
    starts = [each for each in _starts(place) if each[0] < place.attempt]
    _replace(place.lineage_dir / STARTS, {"starts": [*starts, [place.attempt, step]]})


def _starts(place: Place) -> list[list[int]]:
    try:
        return list(json.loads((place.lineage_dir / STARTS).read_text())["starts"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


class History:
    """The metrics of a lineage that count.

    Those that an attempt has reported behind the step from which the next one began do not.
    """

    def __init__(self, place: Place) -> None:
        self.counted: dict[tuple[str, int], tuple[float, float]] = {}  # by name and step: Unix time and value
        self._file, self._offset = place.attempt_dir.parent / str(place.attempt) / METRICS, 0
        for attempt, first in _starts(place):
            if any(step > first for _, step in self.counted):
                self.counted = {key: value for key, value in self.counted.items() if key[1] <= first}
            if attempt != place.attempt:
                self._add(_lines(place.attempt_dir.parent / str(attempt) / METRICS, 0))

    def read(self) -> None:
        """Add what this attempt has written since the last call."""
        text = _lines(self._file, self._offset)
        self._offset += len(text)
        self._add(text)

    def _add(self, text: bytes) -> None:
        for row in _rows(text):
            for name, value in _values(row):
                self.counted[name, int(row["step"])] = (float(row["time"]), value)


def _lines(path: Path, offset: int) -> bytes:
    """Return the whole lines of a file from an offset on; the last one may be torn."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            text = file.read()
    except OSError:
        return b""
    return text[: text.rfind(b"\n") + 1]


def _rows(text: bytes) -> Iterator[Mapping[str, Any]]:
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and "step" in row and "time" in row:
                yield row


def _values(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        known = name not in {"step", "time"} and isinstance(value, (int, float))
        if known and math.isfinite(value):
            yield name, float(value)


def _replace(path: Path, content: Mapping[str, Any]) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(content) + "\n")
    new.replace(path)


@contextlib.contextmanager
def _tolerated(name: str, forget: Callable[[], object] = lambda: None) -> Iterator[None]:
    """A tracker that fails ends no training; it is told once."""
    try:
        yield
    except (OSError, ImportError) as error:
        forget()
        say(f"warning: {name}: {type(error).__name__}: {error}; going on without it")


def say(text: str) -> None:
    """Write one line to the log."""
    sys.stderr.write(f"track: {text}\n")
    sys.stderr.flush()


# --- The process that sends to MLflow


class _Run:
    """A run of MLflow, as far as this process knows it."""

    def __init__(self, task: Mapping[str, Any], place: Place) -> None:
        library = importlib.import_module("mlflow")
        self._entities = importlib.import_module("mlflow.entities")
        self._task, self._place, self._history = task, place, History(place)
        self._history.read()
        self._client = library.MlflowClient(tracking_uri=task["uri"])
        self.run_id = self._find() or self._create()
        self._client.update_run(self.run_id, status="RUNNING")
        self._known = self._steps()

    def send(self) -> None:
        """Send what the run lacks."""
        self._history.read()
        counted, metric = self._history.counted, self._entities.Metric
        rows = [(key, value) for key, value in counted.items() if key not in self._known]
        counted.clear()
        for first in range(0, len(rows), BATCH):
            batch = rows[first : first + BATCH]
            sent = [metric(_key(name), value, round(at * 1000), step) for (name, step), (at, value) in batch]
            self._client.log_batch(self.run_id, metrics=sent)
            self._known.update(key for key, _ in batch)

    def end(self, status: str) -> None:
        """Say how the attempt has ended."""
        if status in {"FINISHED", "FAILED"}:
            self._client.set_terminated(self.run_id, status=status)
        else:
            self._client.update_run(self.run_id, status=status)

    def _steps(self) -> set[tuple[str, int]]:
        """Return the names and steps that the run has."""
        names = {_key(name): name for name, _ in self._history.counted}
        present = self._client.get_run(self.run_id).data.metrics
        return {
            (names.get(key, key), metric.step)
            for key in present
            for metric in self._client.get_metric_history(self.run_id, key)
        }

    def _find(self) -> str | None:
        """Return the run that was kept, if it is still there."""
        kept = self._kept()
        if kept is None:
            return None
        found = self._client.search_runs(
            [self._experiment()], filter_string=f"tags.`runner.run` = '{kept['run']}'", max_results=1
        )
        return found[0].info.run_id if found else None

    def _kept(self) -> Mapping[str, Any] | None:
        task = self._task
        try:
            kept = json.loads((self._place.lineage_dir / RUN).read_text())
            matches = kept["uri"] == task["uri"] and len(kept["run"]) == 32
            mine = not task["is_chosen"] or kept["attempt"] == task["attempt"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return kept if matches and mine else None

    def _create(self) -> str:
        """Create the run, which is kept before it exists: a killed process makes no second one."""
        task = self._task
        kept = self._kept() or {"uri": task["uri"], "run": uuid.uuid4().hex, "attempt": task["attempt"]}
        _replace(self._place.lineage_dir / RUN, kept)
        tags = {
            "runner.run": kept["run"],
            "runner.job_id": str(task["job_id"]),
            "runner.lineage": self._place.lineage_dir.name,
        }
        run = self._client.create_run(self._experiment(), tags=tags, run_name=task["name"])
        param = self._entities.Param
        params = [param(_key(name), value) for name, value in task["params"].items()]
        self._client.log_batch(run.info.run_id, params=params[:100])
        return str(run.info.run_id)

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or self._task["name"]
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))


def _key(name: str) -> str:
    """Return a name as MLflow takes it."""
    return "".join(char if char.isalnum() or char in "_-. :/" else "_" for char in name)[:250]


def _prepare_environment(uri: str) -> None:
    """Ask MLflow for few retries, which this process makes itself, and for no telemetry."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    token = Path("/run/secrets/mlflow_token")
    if token.is_file():
        os.environ.setdefault("MLFLOW_TRACKING_TOKEN", token.read_text().strip())


def main() -> int:
    """Send the metrics of one attempt until its process ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # the training is asked, and says how it has ended
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [each for each in sys.path if str(Path(each).resolve()) != here]
    task = json.loads(sys.argv[1])
    _prepare_environment(task["uri"])
    paths = {key: Path(task[key]) for key in ("lineage_dir", "attempt_dir", "home")}
    place = Place(**{key: paths.get(key, task[key]) for key in Place._fields})
    try:
        return _follow(task, place)
    except ImportError as error:
        say(f"warning: mlflow: {error}; going on without it")
        return 1


def _follow(task: Mapping[str, Any], place: Place) -> int:
    parent, run, told, retry_at = os.getppid(), None, False, 0.0
    lock = os.open(str(place.lineage_dir / LOCK), os.O_CREAT | os.O_RDWR, 0o600)
    leave_at: float | None = None
    status = ""
    while True:
        if leave_at is None:
            ended = _end(parent)
            if ended is not None:
                status, _, seconds = ended.partition(" ")
                leave_at, retry_at = time.monotonic() + float(seconds or EOF_WAIT_S), 0.0
        now = time.monotonic()
        if now >= retry_at:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # that of the attempt before may still send
                run = run or _Run(task, place)
                run.send()
                if leave_at is not None:
                    run.end(status or "SCHEDULED")
                    return 0
            except ImportError:
                raise
            except BlockingIOError:
                retry_at = now + POLL_S
            except Exception as error:  # noqa: BLE001  (whatever a server or the library says)
                run, retry_at = None, now + RETRY_S
                if not told:
                    say(f"warning: mlflow: {_one_line(error)}; trying again every {RETRY_S:.0f} s")
                told = True
        if leave_at is not None:
            if time.monotonic() >= leave_at:
                return 1
            retry_at = min(retry_at, time.monotonic() + POLL_S)
            select.select([], [], [], POLL_S)


def _end(parent: int) -> str | None:
    """Wait a moment; return the status once the training has ended, empty if it was killed."""
    ready, _, _ = select.select([0], [], [], POLL_S)
    if ready:
        return os.read(0, 64).decode(errors="replace")
    return "" if os.getppid() != parent else None


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    sys.exit(main())
