"""Makes your own training script resumable: checkpoints, heartbeat, stop signal and random seeds.

    def save(directory): torch.save(state(), directory / "state.pt")
    def load(directory): restore(torch.load(directory / "state.pt"))

    with attach(save, load) as job:
        for step in job.steps(1000):  # begins after the newest checkpoint
            loss = train_on(job.rows(step, len(rows), 32))
            job.report(loss=loss)

This module is one file that needs only the standard library and Python 3.8 or newer.  Import it as
``gpu_job_runner.attach`` in the job's image, or copy it beside your script, with ``profiled.py`` if you call
``apply_profile``.  A script that the runner starts follows the contract (``docs/reference/contract.md``).  A
script that is started by hand saves below ``./checkpoints`` and reports nothing.  Importing the module under
the runner seeds ``random``, numpy and torch, including libraries that are imported later, so a model that is
built before ``attach`` is called has the same initial weights in every attempt.  Saving is synchronous.

In a run with several processes (``WORLD_SIZE``, ``RANK``), call ``torch.distributed.init_process_group``
before ``attach``.  Rank 0 finds the checkpoint that all resume from, saves and reports.  All processes stop
after the same step, once its checkpoint is on the disk.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fcntl
import functools
import hashlib
import importlib
import importlib.abc
import importlib.util
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType, TracebackType

    from gpu_job_runner.profiled import Applied

    Act = Callable[[Path], object]

CONTRACT_VERSION, MANIFEST, FINAL = 1, "manifest.json", "final"
STOPPED, INVALID_SPEC, DO_NOT_RESTART, NON_FINITE, OUT_OF_MEMORY, NO_VALID_CHECKPOINT = 75, 78, 93, 97, 98, 99
RANK_LOST, LINEAGE_BUSY = 95, 76
CAUSES = {
    STOPPED: "stopped",
    LINEAGE_BUSY: "lineage_busy",
    INVALID_SPEC: "invalid_spec",
    RANK_LOST: "rank_lost",
    NON_FINITE: "non_finite",
    OUT_OF_MEMORY: "device_out_of_memory",
    NO_VALID_CHECKPOINT: "no_valid_checkpoint",
}
HEARTBEAT_S, LOCK_WAIT_S, BAD_KEPT = 0.5, 30.0, 3
NEARLY_FULL = 1 << 20  # bytes: a write that fails where fewer are free has failed for that
NOT_CONNECTED = (
    "torch.distributed does not connect the processes, so each resumes, saves and stops by itself;"
    " call init_process_group before attach"
)
PATIENT_S = 1800.0  # how long processes wait for one that loads, saves or evaluates; the runner watches it
FRESH, NONE_VALID = -1, -2  # what rank 0 says instead of the step to resume from
KINDS: dict[str, Callable[[str], Any]] = {
    "checkpoint_dir": Path,
    "attempt_dir": Path,
    "job_id": str,
    "save_every_s": float,
    "mean_between_s": float,
    "pauses": lambda text: tuple(map(int, text.split(","))),
}


class Invalid(Exception):
    """Raised for a directory that is not a valid checkpoint; the message gives the reason."""


class RankLost(RuntimeError):
    """Raised when another process of this attempt is gone or does not answer."""


class LineageBusy(RuntimeError):
    """Raised when another process holds the lock of the lineage, for longer than an ending one does."""


class Told(NamedTuple):
    """The settings of an attempt: the variables ``RUNNER_<NAME>``, or local values without a runner."""

    checkpoint_dir: Path
    attempt_dir: Path | None = None  # None: no reports are written
    job_id: str = "local"
    revision: int = 1
    attempt: int = 1
    lineage: int = 1
    seed: int = 0
    steps: int | None = None
    resume_step: int | None = None
    save_every_steps: int | None = None
    save_every_s: float | None = None
    mean_between_s: float | None = None  # between two interruptions; with a save's cost it sets save_every_s
    keep: int = 3
    milestone_every: int | None = None
    pauses: tuple[int, ...] = ()  # steps after which to save and leave, but not the one to resume from


def told(environ: Mapping[str, str], local: Told) -> Told:
    """Return the settings from the environment, or ``local`` where there is no runner."""
    spoken = {name: environ.get(f"RUNNER_{name.upper()}") for name in Told._fields}
    known = {name: KINDS.get(name, int)(text) for name, text in spoken.items() if text}
    return Told(**known) if "checkpoint_dir" in known else local


def attach(
    save: Act | None = None,
    load: Act | None = None,
    *,
    every_process: bool = False,
    **local: Any,
) -> Attempt:
    """Return this attempt; ``local`` sets fields of ``Told`` for a run without a runner.

    Both are called with a directory: ``save`` writes plain files into it, ``load`` reads them.  Of several
    processes, all call ``load``, and the one with rank 0 calls ``save``; with ``every_process`` all call it,
    each with the same directory, for a model of which each process has a part.
    """
    by_hand = Told(**{"checkpoint_dir": Path("checkpoints"), "save_every_s": 600.0, **local})
    said = told(os.environ, by_hand)
    earlier = _ATTEMPTS.get(said.checkpoint_dir)
    if earlier is not None:
        earlier.leave(
            INVALID_SPEC,
            f"attach() was called twice for {said.checkpoint_dir}: the second training would resume from the"
            " checkpoints of the first; make them one training, or two jobs of which one waits (queue.after)",
        )
    _ATTEMPTS[said.checkpoint_dir] = Attempt(said, save, load, every_process=every_process)
    return _ATTEMPTS[said.checkpoint_dir]


def attach_states(**states: Any) -> Attempt:
    """Return this attempt, which saves and loads PyTorch objects, such as ``model=model``.

    Whatever has ``state_dict`` and ``load_state_dict`` can be passed: modules, optimisers, schedules.
    A checkpoint is one file, ``state.pt``, with the states by name.

    Raises:
        TypeError: a value has neither.
    """
    for name, value in states.items():
        if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
            raise TypeError(
                f"{name}: {type(value).__name__} has no state_dict and load_state_dict; use attach()"
            )

    def save(directory: Path) -> None:
        import torch

        # Given a path, torch does not say that the disk is full.
        with (directory / "state.pt").open("wb") as file:
            torch.save({name: value.state_dict() for name, value in states.items()}, file)

    def load(directory: Path) -> None:
        import torch

        saved = torch.load(directory / "state.pt", weights_only=True, map_location="cpu")
        for name, value in states.items():
            value.load_state_dict(saved[name])

    return attach(save, load)


def apply_profile() -> Applied:
    """Apply the profile of this job to torch, and return it for what only the script can apply.

    ``with applied.forward():`` around the forward pass, ``applied.compile(model)``, ``applied.scaler()``,
    ``DataLoader(..., **applied.loader())``, ``AdamW(..., **applied.optimizer())``, ``applied.rows(batch)``.
    Call it before the model is built.  Without a runner nothing is changed.
    """
    try:
        module = importlib.import_module("gpu_job_runner.profiled")
    except ModuleNotFoundError:  # copied beside this file
        module = importlib.import_module("profiled")
    directory = os.environ.get("RUNNER_ATTEMPT_DIR")
    spec = json.loads((Path(directory) / "spec.json").read_text()) if directory else {}
    applied: Applied = module.Applied(spec.get("profile", {}), Path(directory) if directory else None)
    return applied


def derive(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit number that depends on the seed and on every part of the purpose."""
    text = ":".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@functools.lru_cache(maxsize=2)
def _order(length: int, seed: int, epoch: int) -> list[int]:
    order = list(range(length))
    random.Random(derive(seed, "order", epoch)).shuffle(order)  # noqa: S311  (not for cryptography)
    return order


class Attempt:
    """One attempt of a training, from the newest checkpoint to the end."""

    def __init__(
        self,
        said: Told,
        save: Act | None = None,
        load: Act | None = None,
        *,
        every_process: bool = False,
    ) -> None:
        self.told = said
        self.step = 0  # the number of finished steps
        self.stopping = False  # a stop was requested: finish the step, save, exit with 75
        self._ranks = Ranks(os.environ)
        self.rank, self.world_size = self._ranks.rank, self._ranks.world_size
        self.writes = self.rank == 0
        self.lineage = Lineage(said, writes=self.writes)
        self.trackers = _trackers(said) if self.writes else None
        self.reports = Reports(said.attempt_dir, self._ranks, self._track)
        self._save, self._load, self._every_process = save, load, every_process
        self._numbers: dict[str, float] = {}
        self._saved_at, self._save_asked, self._pid = time.monotonic(), False, os.getpid()
        self._save_every_s = said.save_every_s
        self._heeds = threading.current_thread() is threading.main_thread()  # else signals reach others
        self.take_signals()
        self._beat("init")

    def __enter__(self) -> Attempt:  # noqa: PYI034  (Python 3.8 has no Self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the result; out of memory exits with 98, every other exception propagates."""
        if error is None:
            try:
                self.finish()
            except Exception as failed:
                self.__exit__(type(failed), failed, failed.__traceback__)
                raise
        elif type(error).__name__ == "OutOfMemoryError":
            traceback.print_exception(kind, error, trace)
            self.leave(OUT_OF_MEMORY, str(error))
        elif isinstance(error, RankLost):
            self.leave(RANK_LOST, str(error))
        elif isinstance(error, LineageBusy):
            self.leave(LINEAGE_BUSY, str(error))
        elif not isinstance(error, SystemExit):
            self._result("disk_full" if _full(error) else "exception", f"{type(error).__name__}: {error}")

    def steps(self, total: int | None = None) -> Iterator[int]:
        """Yield the remaining steps and seed each one; save and stop happen between steps."""
        total = total or self.told.steps
        if total is None:
            raise ValueError("how many steps? say steps(total), or steps in the job file")
        self.reports.known["total_steps"] = total
        if "resumed_from" not in self.reports.known:
            self.restore()
        for step in range(self.step, total):
            self.seed(step)
            yield step
            self.end_step(step + 1)
            stop, save = self.agree()
            if save:
                self.save_together()
            if stop and self.step < total:
                self.leave(STOPPED, f"asked to stop; step {self.step} is saved")

    def report(self, **numbers: float) -> None:
        """Record metrics of this step: ``loss``, ``items`` (rows, tokens: for items/s), your own values."""
        self._numbers.update(numbers)

    def end_step(self, step: int, **numbers: float) -> None:
        """Set the number of finished steps to ``step``, for a loop that does not use ``steps``."""
        self.step = step
        self.reports.numbers(step, {**self._numbers, **numbers})
        self._numbers = {}
        self.stopping = self.stopping or step in self.told.pauses
        self._beat("train", HEARTBEAT_S)

    def rows(self, step: int, length: int, size: int) -> list[int]:
        """Return the row indices below ``length`` of a step's batch; every epoch is shuffled anew."""
        if not 0 < size <= length:
            raise ValueError(f"a batch of {size} of {length} rows; give it at least one, at most all")
        epoch, index = divmod(step, length // size)
        return _order(length, self.told.seed, epoch)[index * size : (index + 1) * size]

    def order(self, total: int, length: int, size: int) -> list[list[int]]:
        """Return the remaining batches after ``restore``, as a ``batch_sampler`` for a DataLoader."""
        return [self.rows(step, length, size) for step in range(self.step, total)]

    def seed(self, step: int, *purpose: str | int) -> None:
        """Seed every generator from the job's seed, step and purpose, independent of earlier draws."""
        key = derive(self.told.seed, step, *purpose)
        random.seed(key)
        for name, seed in SEEDED.items():
            if name in sys.modules:
                seed(sys.modules[name], key)

    def agree(self) -> tuple[bool, bool]:
        """Return two flags, to stop and to save now; all processes get the same answers.

        ``steps`` does this; in a loop of your own, every process calls it after ``end_step``.  Processes
        that ``torch.distributed`` does not connect each answer for themselves.
        """
        due = self.wants_save() if self.writes else self.stopping or self._save_asked
        stop, save = self._ranks.agree(self.stopping, due)
        self.stopping = self.stopping or stop
        return stop, save

    def restore(self, load: Act | None = None) -> int:
        """Load the newest valid checkpoint and return its step, or 0 if there has never been a checkpoint.

        The process exits with 99 if checkpoints exist and none is valid; it never starts afresh silently.
        Of several processes that are connected, rank 0 decides the step, and all load it.
        """
        try:
            found, why_not = self._find()
        except LineageBusy as error:
            self.leave(LINEAGE_BUSY, str(error))
        self.reports.known.update(resumed_from=found, checkpoint_step=found)
        self.reports.rejected = self.lineage.rejected
        if why_not:
            self.leave(NO_VALID_CHECKPOINT if self.told.resume_step is None else INVALID_SPEC, why_not)
        if found is not None:
            self.step = found
            (load or self._load or say_loaded)(self.lineage.place(found))
            say(f"resumed from step {found}; rejected: {self.lineage.rejected or 'none'}")
            if found in self.told.pauses and found != self.told.resume_step:
                self.leave(STOPPED, f"paused at step {found}, as before")
        self._begin_tracking(self.step)
        return self.step

    def _begin_tracking(self, step: int) -> None:
        if self.trackers is not None and not self.trackers.begun:
            self.trackers.begin(step)

    def _track(self, row: dict[str, Any]) -> None:
        """Give a line of metrics to the trackers, also where the script has restored its state by itself."""
        if self.trackers is not None:
            self._begin_tracking(row["step"] - 1)
            self.trackers.add(row)

    def _find(self) -> tuple[int | None, str]:
        """Return the step to resume from (None: a fresh start) and the error, empty if there is none."""
        if not self._ranks.are_connected():
            return self.lineage.find()
        if not self.writes:
            step = self._ranks.from_leader(FRESH)
            return (step, "") if step >= 0 else (None, "rank 0 found none" if step == NONE_VALID else "")
        found, why_not = self.lineage.find()
        self._ranks.from_leader(NONE_VALID if why_not else FRESH if found is None else found)
        return found, why_not

    def wants_save(self) -> bool:
        """Return True if a checkpoint is due after the step that has just ended."""
        if self._heeds and (self._save or self.reports.known.get("checkpoint_step") is not None):
            self.reports.known["saves_when_asked"] = True
        steps, seconds = self.told.save_every_steps, self._save_every_s
        late = seconds is not None and time.monotonic() - self._saved_at >= seconds
        return self.stopping or self._save_asked or late or (steps is not None and self.step % steps == 0)

    def save(self, write: Act | None = None) -> None:
        """Publish a checkpoint of ``step``; a full disk is only a warning unless the training is stopping."""
        write = write or self._save
        self._saved_at, self._save_asked = time.monotonic(), False
        if write is None or not self.writes:
            return
        self._beat("save")
        try:
            self.lineage.publish(self.step, write)
            self.reports.known["checkpoint_step"] = self.step
            self._settle(time.monotonic() - self._saved_at)
        except Exception as error:
            if self.stopping or not _full(error):
                raise
            say(f"warning: checkpoint of step {self.step} skipped: {error}; the next save tries again")
        self._beat("train")

    def save_together(self, write: Act | None = None, *, every_process: bool | None = None) -> None:
        """Publish a checkpoint of ``step``; all processes call this, and return when it is on the disk.

        Rank 0 calls ``write``; with ``every_process``, all do, with the same directory.
        """
        write = write or self._save
        together = self._every_process if every_process is None else every_process
        if not self._ranks.are_connected():
            self.save(write)
            return
        self._ranks.agree()  # all have ended the step, and what they write by themselves
        if write is not None and together:
            self._save_parts(write)
        else:
            self.save(write)
        saved = self.reports.known.get("checkpoint_step") == self.step
        if self._ranks.from_leader(int(saved)):
            self.reports.known["checkpoint_step"] = self.step

    def _save_parts(self, write: Act) -> None:
        """Publish a checkpoint into which every process writes its part."""
        if not self.writes:
            self.save()
            number = self._ranks.from_leader(0)
            if number:
                self._write_part(write, self.lineage.unfinished(self.step, number))
            return
        told: list[int] = []

        def write_with_all(directory: Path) -> None:
            told.append(self._ranks.from_leader(Lineage.number(directory)))
            self._write_part(write, directory)

        self.save(write_with_all)
        if not told:  # it is there already, or there was no room for its directory
            self._ranks.from_leader(0)

    def _write_part(self, write: Act, directory: Path) -> None:
        """Write the part of this process; if one of them fails, rank 0 raises that."""
        problem: Exception | None = None
        try:
            _write(write, directory)
        except RankLost:
            raise
        except Exception as error:  # noqa: BLE001  (the others wait: they must hear of it before it is raised)
            problem = error
        failed, full = self._ranks.agree(problem is not None, _full(problem))
        forgiven = full and not self.stopping  # rank 0 says so, and the next save tries again
        if problem is not None and (self.writes or not forgiven):
            raise problem
        if failed and self.writes:
            number = errno.ENOSPC if full else errno.EIO
            raise OSError(number, "another process could not write its part")

    def _settle(self, cost_s: float) -> None:
        """Set the save interval from the cost of a save, if ``mean_between_s`` is given."""
        mean_s = self.told.mean_between_s
        if mean_s is not None and self._save_every_s is not None:
            self._save_every_s = interval_s(cost_s, mean_s)
            self.reports.known.update(save_every_s=self._save_every_s, save_stall_s=cost_s)

    def finish(self, final: Act | None = None, metrics: Mapping[str, float] | None = None) -> None:
        """Save the last step, publish the files of ``final`` as the finished model, report ``completed``."""
        if self.step and self.reports.known.get("checkpoint_step") != self.step:
            self.stopping = True  # this is the last save, so a full disk is an error
            if self._every_process:
                self.save_together()
            else:
                self.save()
        if final is not None and self.writes:
            self.lineage.publish(self.step, final, FINAL)
        self._result("completed", "", metrics)

    def leave(self, code: int, message: str = "") -> NoReturn:
        """Exit with a code of the contract, after writing the reason to the log and the result."""
        say(f"exiting with {code}: {message}")
        self._result(CAUSES.get(code, "exception"), message)
        raise SystemExit(code)

    def _beat(self, phase: str, unless_within_s: float = 0.0) -> None:
        self.reports.beat(phase, self.step, unless_within_s)

    def _result(self, cause: str, message: str, metrics: Mapping[str, float] | None = None) -> None:
        self._beat("drain")
        self.reports.result(cause, self.step, message, metrics or {})
        if self.trackers is not None:
            ends = {"completed": "FINISHED", "stopped": "SCHEDULED"}
            self.trackers.end(ends.get(cause, "FAILED"), self.step)
        self.lineage.release()

    def take_signals(self) -> None:
        """Receive the signals of the contract, also after a library has set handlers of its own."""
        if self._heeds:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                signal.signal(number, self._heed)

    def _heed(self, number: int, _: FrameType | None) -> None:
        forked = os.getpid() != self._pid  # a loader process: its parent ends it after the first Ctrl-C
        if forked and (number != signal.SIGINT or self.stopping):  # the signal's default action
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif number == signal.SIGUSR1:
            self._save_asked = True
        elif number == signal.SIGINT and self.stopping:
            raise KeyboardInterrupt
        else:
            self.stopping = True


def _seed_numpy(numpy: Any, key: int) -> None:
    numpy.random.seed(key % 2**32)


def _seed_torch(torch: Any, key: int) -> None:
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(key)


SEEDED: dict[str, Callable[[Any, int], None]] = {"numpy": _seed_numpy, "torch": _seed_torch}


class _SeedOnImport(importlib.abc.MetaPathFinder):
    """Seeds a library when it is imported, for a script that imports it after this module."""

    def __init__(self, key: int) -> None:
        self._key = key

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002
        """Return the spec of the other finders, with a loader that also seeds the library after loading."""
        if name not in SEEDED or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_seed(module: Any) -> None:
                load(module)
                SEEDED[name](module, self._key)

            spec.loader.exec_module = load_and_seed  # type: ignore[method-assign]
        return spec


def seed_process(environ: Mapping[str, str]) -> None:
    """Seed every generator from the job's seed, before a script builds its model."""
    if not environ.get("RUNNER_CHECKPOINT_DIR"):
        return  # no runner: the script sets its own seeds
    key = derive(int(environ.get("RUNNER_SEED") or 0), "start")
    random.seed(key)
    for name, seed in SEEDED.items():
        if name in sys.modules:
            seed(sys.modules[name], key)
    sys.meta_path.insert(0, _SeedOnImport(key))


class Ranks:
    """The processes of this attempt; they agree once ``torch.distributed`` connects them.

    They use a group of their own on the CPU, because that of the script may be one of GPUs.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.rank = int(environ.get("RANK") or 0)
        self.world_size = int(environ.get("WORLD_SIZE") or 1)
        self._group: Any = None
        self._warned = False

    def are_connected(self) -> bool:
        """Return True if the processes can agree; say so once if there are several and they cannot."""
        if self.world_size == 1:
            return False
        torch = sys.modules.get("torch")
        if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            if not self._warned:
                say(f"warning: rank {self.rank} of {self.world_size}: {NOT_CONNECTED}")
            self._warned = True
            return False
        if self._group is None:
            patience = dt.timedelta(seconds=PATIENT_S)
            with self._named():
                self._group = torch.distributed.new_group(backend="gloo", timeout=patience)
        return True

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """Return each flag: true if any process says so.  Without flags: return when all have come here."""
        if not self.are_connected():
            return flags
        torch = sys.modules["torch"]
        told = torch.tensor([*flags, False], dtype=torch.uint8, device="cpu")
        with self._named():
            torch.distributed.all_reduce(told, op=torch.distributed.ReduceOp.MAX, group=self._group)
        return tuple(bool(flag) for flag in told.tolist()[:-1])

    def from_leader(self, number: int) -> int:
        """Return the number that rank 0 gives; only for processes that are connected."""
        torch = sys.modules["torch"]
        told = torch.tensor([number], dtype=torch.int64, device="cpu")
        with self._named():
            torch.distributed.broadcast(told, 0, group=self._group)
        return int(told.item())

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            first_line = f"{error}\n".splitlines()[0][:300]
            raise RankLost(
                f"another process of this attempt is gone or does not answer: {first_line}"
            ) from error


class Lineage:
    """The directory of checkpoints; a checkpoint is committed by one rename."""

    def __init__(self, said: Told, *, writes: bool) -> None:
        self.directory = said.checkpoint_dir
        self.rejected: list[tuple[str, str]] = []
        self._told, self._writes = said, writes
        self._lock: int | None = None
        self._parent: int | None = None

    def place(self, step: int) -> Path:
        """Return the path of a step's checkpoint."""
        return self.directory / f"step-{step:08d}"

    def find(self) -> tuple[int | None, str]:
        """Return the step to resume from (None: a fresh start) and the error, empty if there is none."""
        self._hold()
        present, given = self._present(), self._told.resume_step
        for step in present if given is None else [given]:
            try:
                _verify(self.place(step))
            except Invalid as error:
                self.rejected.append((self.place(step).name, str(error)))
            else:
                self._adopt(step, [other for other in present if other > step])
                return step, ""
        if given is None:
            self.rejected += [(bad.name, "rejected earlier") for bad in self.directory.glob("bad-*")]
        return None, f"no valid checkpoint: {self.rejected}" if self.rejected else ""

    def _adopt(self, step: int, newer: list[int]) -> None:
        """Make a step the end of the lineage: newer checkpoints are set aside and never read again."""
        self._parent = step
        if not self._writes:
            return
        given = self._told.resume_step is not None
        for path in [self.place(each) for each in newer] + ([self.directory / FINAL] if given else []):
            _set_aside(path, "superseded" if given else "bad")
        bad = sorted(self.directory.glob("bad-*"), key=lambda path: path.lstat().st_ctime_ns, reverse=True)
        for path in bad[BAD_KEPT:]:
            shutil.rmtree(path, ignore_errors=True)

    def publish(self, step: int, write: Act, name: str = "") -> None:
        """Call ``write`` with a temporary directory, and rename that once it is complete and synced."""
        self._hold()
        place = self.directory / name if name else self.place(step)
        if not name and _is_valid(place):
            return
        tmp = self.unfinished(step, int.from_bytes(os.urandom(4), "big") + 1)
        tmp.mkdir()
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(shutil.rmtree, tmp, ignore_errors=True)  # a failed save frees its space
            _write(write, tmp)
            self._seal(tmp, step)
            _set_aside(place, "superseded" if name else "bad")
            tmp.rename(place)  # after the rename there is nothing to clean up
            _sync(self.directory)
        self._parent = step
        self._retain()

    def unfinished(self, step: int, number: int) -> Path:
        """Return the directory into which a checkpoint is written before it gets its name."""
        return self.directory / f".tmp-{step}-{number:09x}"

    @staticmethod
    def number(unfinished: Path) -> int:
        """Return the number, above 0, in the name of such a directory."""
        return int(unfinished.name.rpartition("-")[2], 16)

    def release(self) -> None:
        """Release the lock, so that the next attempt can take it."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def _present(self) -> list[int]:
        names = [path.name for path in self.directory.glob("step-*")]
        return sorted((int(name[5:]) for name in names if re.fullmatch(r"step-\d{8,12}", name)), reverse=True)

    def _seal(self, tmp: Path, step: int) -> None:
        """Sync the written files, then write the manifest."""
        paths = sorted(tmp.iterdir())
        wrong = [path.name for path in paths if path.is_symlink() or not path.is_file()]
        if wrong or not paths:
            raise ValueError(f"a checkpoint holds plain files, not {wrong or 'nothing'}")
        for path in paths:
            _sync(path)
        manifest = {
            **{name: getattr(self._told, name) for name in ("job_id", "lineage", "attempt", "revision")},
            "contract_version": CONTRACT_VERSION,
            "step": step,
            "parent_step": self._parent,
            "created": time.time(),
            "files": {path.name: _facts(path) for path in paths},
        }
        (tmp / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        _sync(tmp / MANIFEST)
        _sync(tmp)

    def _retain(self) -> None:
        every = self._told.milestone_every
        for step in self._present()[max(self._told.keep, 2) :]:
            if not (every and step % every == 0):
                trash = self.directory / f".trash-{step}-{os.urandom(4).hex()}"
                self.place(step).rename(trash)
                shutil.rmtree(trash, ignore_errors=True)

    def _hold(self) -> None:
        """Take the lineage's lock, so that an ending attempt and its successor never write concurrently."""
        if self._lock is not None or not self._writes:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(str(self.directory / ".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        deadline = time.monotonic() + LOCK_WAIT_S
        while not _locked(self._lock):
            if time.monotonic() > deadline:
                raise LineageBusy(f"{self.directory}: locked by another process; stop that one first")
            threading.Event().wait(0.05)
        for left in [*self.directory.glob(".tmp-*"), *self.directory.glob(".trash-*")]:
            shutil.rmtree(left, ignore_errors=True)


class Reports:
    """Writes heartbeat, metrics and result; a failed write never ends a training.

    Another process than rank 0 writes its result only, as ``rank-R.result.json``, if it fails: the launcher
    reads it there.
    """

    def __init__(
        self, directory: Path | None, ranks: Ranks, track: Callable[[dict[str, Any]], object]
    ) -> None:
        self.known: dict[str, Any] = {}
        self._track = track
        self.rejected: list[tuple[str, str]] = []
        self._directory = directory if ranks.rank == 0 else None
        self._own = directory if ranks.rank and ranks.world_size > 1 else None
        self._own_name = f"rank-{ranks.rank}.result.json"
        self._beat_at, self._items, self._items_at = -math.inf, 0.0, time.monotonic()
        self._done = 0.0  # items since the attempt began

    def beat(self, phase: str, step: int, unless_within_s: float) -> None:
        """Replace the heartbeat, unless the last one is younger than ``unless_within_s``."""
        now = time.monotonic()
        if now - self._beat_at < unless_within_s:
            return
        if self._items and now - self._items_at >= HEARTBEAT_S:
            self.known["items_per_s"] = self._items / (now - self._items_at)
            self._items, self._items_at = 0.0, now
        self._beat_at = now
        self._replace("status.json", {**self.known, "phase": phase, "time": time.time(), "step": step})

    def numbers(self, step: int, numbers: dict[str, float]) -> None:
        """Append a line of metrics, if there are any; ``items`` only counts towards the total and items/s."""
        items = float(numbers.pop("items", 0))
        self._items += items
        self._done += items
        self.known.update({"items": int(self._done)} if self._done else {})
        values = {name: _finite(float(value)) for name, value in numbers.items()}
        self.known.update({"loss": values["loss"]} if "loss" in values else {})
        if self._directory is not None and values:
            row = {"time": round(time.time(), 3), "step": step, **values}
            with _tolerated("metrics.jsonl"), (self._directory / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            self._track(row)

    def result(self, cause: str, step: int, message: str, metrics: Mapping[str, float]) -> None:
        """Write the result."""
        rejected = [{"name": name[:200], "why": why[:1000]} for name, why in self.rejected[:20]]
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        about = {"message": " ".join(message.split())[:4000], "resumed_from": self.known.get("resumed_from")}
        end = {"cause": cause, "step": step, "time": time.time(), "rejected": rejected, "metrics": finite}
        self._replace("result.json", {**end, **about})
        if self._own is not None and cause != "completed":
            _replace(self._own / self._own_name, {**end, **about})

    def _replace(self, name: str, content: dict[str, Any]) -> None:
        if self._directory is not None:
            _replace(self._directory / name, content)


def _replace(path: Path, content: dict[str, Any]) -> None:
    with _tolerated(path.name):
        new = path.with_name(f".{path.name}.new")
        new.write_text(json.dumps(content, indent=1) + "\n")
        new.replace(path)


def _trackers(said: Told) -> Any:
    """Return the trackers that the job file asks for, None if it asks for none."""
    wanted, job_dir = os.environ.get("RUNNER_TRACK"), os.environ.get("RUNNER_JOB_DIR")
    if not wanted or not job_dir or said.attempt_dir is None:
        return None
    for name in ("gpu_job_runner.tracking", "tracking"):  # of the image, or copied beside this file
        try:
            module = importlib.import_module(name)
            place = module.Place(
                said.job_id,
                said.attempt,
                said.checkpoint_dir,
                said.attempt_dir,
                Path(job_dir) / "home",
                said.resume_step is not None,
            )
            return module.Trackers(json.loads(wanted), place, {"seed": said.seed})
        except (ImportError, AttributeError):
            continue
    say(
        "warning: track: no module gpu_job_runner.tracking; copy tracking.py beside attach.py; "
        "going on without it"
    )
    return None


@contextlib.contextmanager
def _tolerated(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        say(f"warning: {name} cannot be written ({error.strerror}); going on without it")


def interval_s(save_s: float, mean_s: float) -> float:
    """Return the optimal interval between saves of ``save_s`` seconds each (Young 1974), within bounds."""
    return max(20 * save_s, 10.0, min(math.sqrt(2 * save_s * mean_s) - save_s, 600.0))


def say(text: str) -> None:
    """Write one line to the log."""
    sys.stderr.write(f"attach: {text}\n")


def say_loaded(place: Path) -> None:
    """Log that no ``load`` was given; the caller continues from ``step`` on its own."""
    say(f"nothing loads {place}")


def _is_valid(place: Path) -> bool:
    try:
        _verify(place)
    except Invalid:
        return False
    return True


def _verify(place: Path) -> None:
    """Compare every file of a checkpoint with its manifest."""
    try:
        manifest = json.loads((place / MANIFEST).read_bytes())
        if f"step-{manifest['step']:08d}" != place.name or manifest["contract_version"] > CONTRACT_VERSION:
            raise Invalid(f"manifest is for step {manifest['step']}, or of a newer contract")
        for name, expected in manifest["files"].items():
            if _facts(place / name) != expected:
                raise Invalid(f"{name}: not what the manifest says")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Invalid(f"{type(error).__name__}: {error}") from error


def _facts(path: Path) -> dict[str, int | str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
            size += len(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _set_aside(place: Path, why: str) -> None:
    if place.exists():
        place.rename(place.with_name(f"{why}-{place.name}-{os.urandom(4).hex()}"))


def _sync(path: Path) -> None:
    descriptor = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):  # a file system without locks
            raise
    return True


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _write(write: Act, directory: Path) -> None:
    """Call ``write``; what a library raises on a full disk becomes the error of a full disk."""
    try:
        write(directory)
    except RankLost:
        raise
    except Exception as error:
        if not _full(error) and shutil.disk_usage(str(directory)).free < NEARLY_FULL:
            raise OSError(errno.ENOSPC, f"no space left on the disk: {error}") from error
        raise


def _full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


_ATTEMPTS: dict[Path, Attempt] = {}
"""The attempt of each directory of checkpoints: a second one in the same process is refused."""

seed_process(os.environ)
