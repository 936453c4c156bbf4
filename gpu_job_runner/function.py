"""Calling a function as a job: it travels with its code, and its result or its exception comes back.

Functions are pickled by cloudpickle, whose source travels too: an image needs none.  What a function imports
must be in its job: modules below the code directory are, in the copy that every job starts in.
"""

from __future__ import annotations

import base64
import functools
import inspect
import io
import itertools
import os
import pickle
import sys
import zlib
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpu_job_runner import call
from gpu_job_runner.job import CALL, Job, JobFailed, connect
from gpu_job_runner.submission import Options, Spec, check_options, make_spec, send
from runner.base.errors import Refused, UsageError
from runner.cli.run_file import default_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Unpack

    from runner.client.types import JobDetail

T = TypeVar("T")

LIBRARY: Final = ("cloudpickle.cloudpickle", "cloudpickle")
MISSING: Final = "run: needs cloudpickle, which is not installed; pip install 'gpu-job-runner[python]'"
WORD: Final = 32_000
"""Characters of one argument; a job file takes 32,768."""


class RemoteError(JobFailed):
    """The function of a job raised an exception: its cause, if it can be had here."""

    def __init__(self, message: str, job: Job[object], traceback: str) -> None:
        super().__init__(message, job)
        self.traceback = traceback


def run(function: Callable[..., T], /, *args: object, **options: Unpack[Options]) -> Job[T]:
    """Call a function in a job of its own; ``job.result()`` is what it returns.

    ``options`` are those of the job; keyword arguments of the function are bound by ``functools.partial``.

    Raises:
        UsageError: the function cannot be pickled, or an option is wrong.
    """
    check_options(options, "; arguments of the function are bound by functools.partial")
    spec = _spec(function, args, {}, options)
    return send(connect(), spec)[0]


def map(  # noqa: A001  the word of Python for it
    function: Callable[..., T],
    values: Iterable[object] | Mapping[str, Sequence[object]],
    /,
    **options: Unpack[Options],
) -> list[Job[T]]:
    """Call a function in a job for each value, or for each combination of a grid such as ``{"lr": [1, 2]}``.

    The values of a combination are keyword arguments.  If one job is refused, or the call is interrupted,
    those before it are cancelled.
    """
    if isinstance(values, Mapping):
        for name, each in values.items():
            if isinstance(each, str) or not isinstance(each, Iterable):
                raise UsageError(f"{name}: must be a list of values, not {each!r}")
        rows: list[tuple[tuple[object, ...], dict[str, object]]] = [
            ((), dict(zip(values, each, strict=True))) for each in itertools.product(*values.values())
        ]
    elif isinstance(values, str) or not isinstance(values, Iterable):
        raise UsageError(f"map: takes a list of values, or a grid of them, not {values!r}")
    else:
        rows = [((each,), {}) for each in values]
    specs = [_spec(function, args, kwargs, options) for args, kwargs in rows]
    connection = connect()
    jobs: list[Job[T]] = []
    try:
        for spec in specs:
            jobs += send(connection, spec)
    finally:
        if 0 < len(jobs) < len(specs):  # those that are submitted have no caller
            connection.cancel_all([job.id for job in jobs])
    return jobs


def returned(job: Job[Any], detail: JobDetail) -> Any:
    """Return the result of the function of an ended job.

    Raises:
        RemoteError: it raised an exception.
        JobFailed: the job ended otherwise.
        UsageError: the value cannot be loaded here.
        Refused: the job is another user's, whose pickles this process does not load.
    """
    if not job.is_mine():
        raise Refused(f"{job.name}: is another user's; what it returned is code of theirs, and is not loaded")
    attempt = detail["attempts"][-1]["number"] if detail["attempts"] else 0
    try:
        stream = io.BytesIO(job.read(f"/job/attempts/{attempt}/{call.KEPT}"))
    except UsageError as error:
        job.check(detail)
        fact = "its process ended before the function returned, or its files were removed"
        raise JobFailed(f"{job.name}: {fact}", job) from error
    succeeded, line, text = pickle.load(stream)  # noqa: S301  of this user's own job
    if succeeded:
        job.check(detail)
    try:
        value = pickle.load(stream)  # noqa: S301  as above
    except Exception as error:  # of the value's own class, which may be missing here
        if succeeded:
            fact = f"what it returned cannot be loaded here: {type(error).__name__}: {error}"
            raise UsageError(f"{job.name}: {fact}") from error
        value = None
    if succeeded:
        return value
    raise RemoteError(f"{job.name}: {line}{_missing(value)}\n\n{text}".rstrip(), job, text) from value


def _missing(error: object) -> str:
    """Return advice about a module that is here, and was not in the job."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    spec = find_spec(error.name.partition(".")[0])
    if spec is None:
        return ""
    place = spec.origin or "a directory"
    return f" (here it is {place}: submit from the directory that has it, or say code, packages or image)"


def _spec(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object], options: Options
) -> Spec:
    """Return the job file of a call.

    Raises:
        UsageError: cloudpickle is missing, or the call cannot be pickled.
    """
    try:
        import cloudpickle
    except ImportError as error:
        raise UsageError(MISSING) from error
    name = getattr(_unwrapped(function), "__name__", "call").strip("<>")
    _check_call(name, function, args, kwargs)
    try:
        pickled = cloudpickle.dumps((function, args, kwargs))
    except Exception as error:  # the arguments' own methods run, which may raise anything
        raise UsageError(f"{name}: cannot be pickled with its arguments: {error}") from error
    packed = {
        "python": sys.version_info[:2],
        "interpreter": sys.executable,
        "paths": _paths(options.get("code", ".")),
        "library": [_source(each) for each in LIBRARY],
        "call": pickled,
    }
    text = base64.b64encode(zlib.compress(pickle.dumps(packed))).decode()
    words = [text[at : at + WORD] for at in range(0, len(text), WORD)]
    command = ("python3", "-c", Path(call.__file__).read_text("utf-8"), CALL, *words)
    given: Options = {"name": default_name((name,)), **options}
    return make_spec(command, given)


def _check_call(
    name: str, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """Raise UsageError for a call that would fail in its job, or return what cannot be kept."""
    if not callable(function):
        raise UsageError(f"run: {function!r} is no function; submit takes commands and job files")
    inner = _unwrapped(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise UsageError(f"{name}: is a generator, which stays in its job; return a list")
    if inspect.iscoroutinefunction(inner):
        raise UsageError(f"{name}: is asynchronous; run a function that calls asyncio.run({name}(...))")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a few functions of C it is not known
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"{name}: {error}") from error


def _unwrapped(function: object) -> object:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _paths(code: str | None) -> list[str]:
    """Return the directories with modules in the code directory, relative to it."""
    if code is None:
        return []
    root = os.path.realpath(code)
    inside = [os.path.relpath(os.path.realpath(each or "."), root) for each in sys.path]
    return [each for each in dict.fromkeys(inside) if each != os.pardir and not each.startswith("../")]


def _source(module: str) -> tuple[str, str, bool]:
    """Return the name and the source of a module, and whether it is a package."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise UsageError(MISSING)
    return module, Path(spec.origin).read_text("utf-8"), spec.submodule_search_locations is not None
