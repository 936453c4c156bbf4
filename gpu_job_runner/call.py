"""The program of a job that calls a function: unpacks it, calls it, and keeps what it returns or raises.

The source of this module is an argument of ``python -c``: a job needs the standard library and Python 3.8.
"""

from __future__ import annotations

import base64
import os
import pickle
import sys
import traceback
import types
import zlib

KEPT = "returned.pickle"
"""The file in the directory of the attempt."""


def main(words: list[str]) -> None:
    """Call the function that the words hold; an exception ends the process with its traceback."""
    packed = pickle.loads(zlib.decompress(base64.b64decode("".join(words))))  # noqa: S301  made by the submitter
    if packed["python"] != sys.version_info[:2]:
        there, here = (".".join(map(str, each)) for each in (packed["python"], sys.version_info[:2]))
        sys.exit("the function is of Python {}, and the job has {}; choose another image".format(there, here))
    sys.path[:0] = packed["paths"]
    load_library(packed["library"])
    try:
        function, args, kwargs = pickle.loads(packed["call"])  # noqa: S301  as above
        keep((True, function(*args, **kwargs)))
    except Exception as error:  # of the user's function: it is the result
        text = traceback.format_exc()
        try:
            keep((False, (error, text)))
        except Exception:  # noqa: BLE001  an exception that cannot be pickled is told as text
            keep((False, (None, text)))
        raise


def load_library(sources: list[tuple[str, str, bool]]) -> None:
    """Import modules from their sources, in the version that has pickled the function."""
    for name, source, is_package in sources:
        module = types.ModuleType(name)
        module.__package__ = name if is_package else name.rpartition(".")[0]
        if is_package:
            module.__path__ = []
        sys.modules[name] = module
        exec(compile(source, name, "exec"), module.__dict__)  # noqa: S102  the pickling library itself


def keep(outcome: tuple[bool, object]) -> None:
    """Write an outcome where the submitter finds it, whole or not at all."""
    import cloudpickle

    path = os.path.join(os.environ["RUNNER_ATTEMPT_DIR"], KEPT)
    with open(path + ".part", "wb") as file:
        file.write(cloudpickle.dumps(outcome))
    os.replace(path + ".part", path)


if __name__ == "__main__":
    main(sys.argv[2:])
