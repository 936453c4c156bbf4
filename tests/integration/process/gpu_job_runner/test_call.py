"""The program that calls a function, where the job has another Python than its caller."""

import base64
import pickle
import subprocess
import sys
import zlib
from pathlib import Path

from gpu_job_runner import call


def start(interpreter: str, attempt: Path) -> subprocess.CompletedProcess[str]:
    """Start the program for a function of Python 2.7."""
    packed = {"python": (2, 7), "interpreter": interpreter}
    words = base64.b64encode(zlib.compress(pickle.dumps(packed))).decode()
    command = [sys.executable, "-c", Path(call.__file__).read_text(), "call", words[:9], words[9:]]
    environment = {"PATH": "/none", "RUNNER_ATTEMPT_DIR": str(attempt)}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def test_it_begins_again_with_the_python_of_its_caller(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text('#!/bin/sh\necho "$1 $3 $4$5"\n')
    other.chmod(0o755)
    found = start(str(other), tmp_path).stdout.split()
    assert found[:2] == ["-c", "call"]
    assert pickle.loads(zlib.decompress(base64.b64decode(found[2])))["python"] == (2, 7)  # noqa: S301  of above


def test_a_python_that_is_not_there_is_told_in_a_line(tmp_path: Path) -> None:
    for interpreter in ("/none/python", "", sys.executable):  # the last one is of another version, too
        ended = start(interpreter, tmp_path)
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        line = f"the function is of Python 2.7, and the job has {here}; choose an image with 2.7"
        assert (ended.returncode, ended.stderr) == (call.FINAL, f"{line}\n")
        assert pickle.loads((tmp_path / call.KEPT).read_bytes()) == (False, line, "")  # noqa: S301  of this test
