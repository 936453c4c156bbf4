"""The program of a job that calls a function: unpacks it, calls it, and keeps what it returns or raises.

The source of this module is an argument of ``python -c``: a job needs the standard library and Python 3.8.
"""

from __future__ import annotations

import base64
import functools
import os
import pickle
import shutil
import sys
import traceback
import types
import zlib

TYPE_CHECKING = False  # as ``typing.TYPE_CHECKING``, without the import
if TYPE_CHECKING:
    from typing import Any, NoReturn

CHANGED = "RUNNER_CALL_CHANGED"
"""The variable of a process whose interpreter was changed, which is done once."""

FINAL = 93
"""The exit code of the contract of what is not to be started again."""

KEPT = "returned.pickle"
"""The file in the directory of the attempt."""


def main(words: list[str]) -> None:
    """Call the function that the words hold; an exception ends the process with its traceback."""
    packed = pickle.loads(zlib.decompress(base64.b64decode("".join(words))))  # noqa: S301  made by the submitter
    if packed["python"] != sys.version_info[:2]:
        change_python(packed)
    os.environ.pop(CHANGED, None)
    sys.path[:0] = packed["paths"]
    sys.argv[1:] = []  # the words are none of the function's arguments
    load_library(packed["library"])
    try:
        function, args, kwargs = pickle.loads(packed["call"])  # noqa: S301  as above
        put_in_main(function)
        keep_result(function(*args, **kwargs))
    except (Exception, SystemExit) as error:  # of the user's function: it is the result
        told = (False, *describe(error))
        try:
            keep(told, error)
        except Exception:  # noqa: BLE001  an exception that cannot be pickled is told as text
            keep(told)
        raise


def change_python(packed: dict[str, Any]) -> NoReturn:
    """Begin again with an interpreter of the function's Python: that of its caller, or one of the name."""
    there, here = (".".join(map(str, each)) for each in (packed["python"], sys.version_info[:2]))
    others = (shutil.which(each) for each in (packed["interpreter"], "python" + there))
    found = next(filter(None, others), None)
    if found is None or CHANGED in os.environ:
        line = "the function is of Python {0}, and the job has {1}; choose an image with {0}".format(
            there, here
        )
        keep((False, line, ""))
        sys.stderr.write(line + "\n")
        sys.exit(FINAL)
    os.environ[CHANGED] = here
    with open("/proc/self/cmdline", "rb") as file:
        [_, *words] = file.read().split(b"\0")[:-1]
    os.execv(found, [os.fsencode(found), *words])  # noqa: S606  that which started this one, but another


def put_in_main(function: object) -> None:
    """Let ``__main__`` have what a function of a script uses, so that its classes can be pickled by name."""
    while isinstance(function, functools.partial):
        function = function.func
    if getattr(function, "__module__", None) == "__main__":
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        names = getattr(function, "__globals__", {}).items()
        main.__dict__.update({name: value for name, value in names if not name.startswith("__")})


def describe(error: BaseException) -> tuple[str, str]:
    """Return an exception in one line, and its traceback without the frame of ``main``."""
    only = traceback.format_exception_only(type(error), error)
    [line, *_] = (each for each in only if not each.startswith(" "))
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    return line.split("\n")[0], "".join(traceback.format_exception(type(error), error, frames))


def load_library(sources: list[tuple[str, str, bool]]) -> None:
    """Import modules from their sources, in the version that has pickled the function."""
    for name, source, is_package in sources:
        module = types.ModuleType(name)
        module.__package__ = name if is_package else name.rpartition(".")[0]
        if is_package:
            module.__path__ = []
        sys.modules[name] = module
        exec(compile(source, name, "exec"), module.__dict__)  # noqa: S102  the pickling library itself


def keep_result(value: object) -> None:
    """Keep what the function returned.

    Raises:
        TypeError: it cannot be pickled.
    """
    try:
        keep((True, "", ""), value)
    except Exception as error:  # noqa: BLE001  of the value's own methods
        kind = type(value).__name__
        raise TypeError(f"the function returned what cannot be pickled ({kind}): {error}") from None


def keep(told: tuple[bool, str, str], *value: object) -> None:
    """Write an outcome where the submitter finds it, whole or not at all.

    It is told first, without any class: the value, or the exception, may be one that cannot be loaded there.
    """
    path = os.path.join(os.environ["RUNNER_ATTEMPT_DIR"], KEPT)
    with open(path + ".part", "wb") as file:
        pickle.dump(told, file)
        for each in value:
            import cloudpickle

            cloudpickle.dump(each, file)
    os.replace(path + ".part", path)


if __name__ == "__main__":
    main(sys.argv[2:])
