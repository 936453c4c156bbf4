"""Functions as jobs of a real daemon: their results and their exceptions come back."""

import asyncio
import functools
import json
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gpu_job_runner as runner
from tests.fakes.daemon.service import Service, service
from tests.fakes.patience import patience

PAGE = Path(__file__).parents[4] / "docs" / "howto" / "python.md"
PYTHON = "/usr/bin:/bin"
"""Where users find a Python: that of the tests may be in somebody's home."""


@pytest.fixture(scope="module", name="daemon")
def _daemon() -> Iterator[Service]:
    with service(executor="process") as made:
        made.env["PATH"] = PYTHON
        yield made.start()


@pytest.fixture(autouse=True)
def _here(daemon: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_SOCKET", str(daemon.socket))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def scale(x: float, by: float = 2.0) -> float:
    from sdk_beside import offset  # type: ignore[import-not-found]  # a module of the code directory

    return float(x * by + offset)


def fail(key: str) -> None:
    raise KeyError(key)


class Odd(Exception):
    """One that is made of two values, and loaded with one."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Missing:
    """A value of a class that the caller has not."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return __import__, ("absent",)


def odd() -> None:
    raise Odd(1, 2)


def several() -> None:
    raise ExceptionGroup("both", [ValueError(1), TypeError(2)])


def leave(code: int) -> None:
    sys.exit(code)


def end(code: int) -> None:
    os._exit(code)


def missing() -> Missing:
    return Missing()


def locked() -> Any:
    return threading.Lock()


def elsewhere() -> None:
    import sdk_elsewhere  # type: ignore[import-not-found]  # noqa: F401  beside no job


def by_name() -> tuple[bytes, list[str]]:
    return pickle.dumps(Point(1, 2)), sys.argv


@dataclass
class Point:
    x: int
    y: int


def nap() -> None:
    time.sleep(3600)


def by_value(module: str) -> None:
    """Let the functions of this file travel as those of a script or a notebook do."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[module])


def test_functions_return_and_raise_as_if_they_were_called_here(tmp_path: Path) -> None:
    by_value(__name__)
    (tmp_path / "sdk_beside.py").write_text("offset = 1\n")
    first = runner.run(functools.partial(scale, by=3.0), 5, name="first", labels={"kind": "call"})
    grid = runner.map(scale, {"x": [1.0, 2.0], "by": [10.0]})
    bad = runner.run(fail, "ouch")
    large = runner.run(len, os.urandom(600_000))

    async def together() -> list[float]:
        return await asyncio.gather(*grid)

    assert first.result(patience()) == 16.0
    assert large.result(patience()) == 600_000
    assert asyncio.run(together()) == [11.0, 21.0]
    with pytest.raises(runner.RemoteError, match="fail: KeyError: 'ouch'") as told:
        bad.result(patience())
    assert isinstance(told.value.__cause__, KeyError)
    assert "in fail" in told.value.traceback
    again = runner.find("first")
    assert [job.id for job in runner.find_all(label="kind=call")] == [again.id]
    assert again.result() == 16.0
    assert again.events()[0]["kind"] == "submitted"


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    """Its blocks run as they are, but for what this machine has not: GPUs, an index of packages, a python."""
    line = json.dumps({"time": 1, "step": 1, "loss": 0.5})
    report = f'open(os.environ["RUNNER_ATTEMPT_DIR"] + "/metrics.jsonl", "w").write({(line + chr(10))!r})'
    (tmp_path / "train.py").write_text(f"import os\n{report}\nprint('done')\n")
    (tmp_path / "model.py").write_text("def fit(lr, width): return lr * width\n")
    text = PAGE.read_text()
    for there, here in (
        ("gpus=1, ", ""),
        (", gpus=1", ""),
        (', packages=["einops"]', ""),
        ('"python"', '"python3"'),
    ):
        text = text.replace(there, here)
    first, function, search = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:3]
    seen: dict[str, Any] = {"__name__": "__main__", "runner": runner}
    exec(first.replace('memory="32G"', 'memory="64M"').replace("print(", "shown = ("), seen)  # noqa: S102  the page
    assert seen["shown"] == ("succeeded", "done\n", (1, 0.5))
    exec(function, seen)  # noqa: S102  the page
    assert seen["best"] == 1e-4 * 64
    seen["optuna"] = pytest.importorskip("optuna", reason="optuna is not installed")
    exec(search.replace("range(10)", "range(2)").replace("range(4)", "range(2)"), seen)  # noqa: S102  the page
    assert 1e-5 <= seen["study"].best_params["lr"] <= 1e-1


def test_what_another_user_returned_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    by_value(__name__)
    (tmp_path / "sdk_beside.py").write_text("offset = 0\n")
    job = runner.run(scale, 1)
    job.wait(patience())
    monkeypatch.setattr(runner.Job, "is_mine", lambda _: False)
    with pytest.raises(runner.Refused, match="another user's"):
        job.result()


def test_a_function_that_ends_in_an_odd_way_is_told_as_what_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    by_value(__name__)
    (other := tmp_path_factory.mktemp("other")).joinpath("sdk_elsewhere.py").touch()
    monkeypatch.syspath_prepend(str(other))
    for script in (by_name, Point):  # as those of a script
        monkeypatch.setattr(script, "__module__", "__main__")
    jobs = [runner.run(function, *args, attempts=1) for function, args, *_ in ENDS]
    named = runner.run(by_name)
    for job, (_, _, kind, text, cause) in zip(jobs, ENDS, strict=True):
        with pytest.raises(kind, match=text) as told:
            job.result(patience())
        assert isinstance(told.value.__cause__, cause)
    found, words = named.result(patience())
    monkeypatch.setattr(sys.modules["__main__"], "Point", Point, raising=False)
    assert (pickle.loads(found), words) == (Point(1, 2), ["-c"])  # noqa: S301  of the line above


ENDS: tuple[tuple[Any, tuple[int, ...], type[Exception], str, type], ...] = (
    (odd, (), runner.RemoteError, r"^odd: .*Odd: 1 and 2\n\nTraceback", type(None)),
    (several, (), runner.RemoteError, r"^several: ExceptionGroup: both \(2", ExceptionGroup),
    (leave, (0,), runner.RemoteError, "^leave: SystemExit: 0", SystemExit),
    (leave, (3,), runner.RemoteError, "^leave: SystemExit: 3", SystemExit),
    (end, (0,), runner.JobFailed, "^end: its process ended before the function returned", runner.UsageError),
    (end, (3,), runner.JobFailed, "^end: failed: .*exit code 3", type(None)),
    (
        missing,
        (),
        runner.UsageError,
        "^missing: what it returned cannot be loaded here: .*absent",
        ImportError,
    ),
    (locked, (), runner.RemoteError, r"^locked: .*returned what cannot be pickled \(lock\)", TypeError),
    (
        elsewhere,
        (),
        runner.RemoteError,
        "^elsewhere: .*here it is .*/sdk_elsewhere.py: submit from",
        ImportError,
    ),
)


def test_waiting_asynchronously_ends_when_it_is_cancelled() -> None:
    by_value(__name__)
    job = runner.run(nap)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job, 0.1)

    asyncio.run(give_up())  # which waits for its threads
    assert not job.done
    job.cancel()


def test_what_cannot_be_pickled_is_refused_before_anything_is_submitted() -> None:
    with pytest.raises(runner.UsageError, match="scale: cannot be pickled"):
        _ = runner.run(scale, (each for each in "ab"))
