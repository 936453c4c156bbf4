"""A package index of tiny wheels: an interpreter whose ``-m pip download`` copies one."""

import hashlib
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from runner.adapters.datasets.store import Download
from runner.files.datasets import DataSet, Member

PIP = """\
#!{python} -I
import shutil, sys
dest = next(word.removeprefix("--dest=") for word in sys.argv if word.startswith("--dest="))
wheel = {folder!r} + "/" + sys.argv[-1].replace("==", "-") + ".whl"
open({folder!r} + "/asked", "a").write(" ".join(sys.argv[1:]) + "\\n")
try:
    shutil.copy(wheel, dest)
except FileNotFoundError:
    sys.exit("WARNING: retrying\\nERROR: No matching distribution found for " + sys.argv[-1] + "\\n")
"""


@dataclass(frozen=True)
class FakeIndex:
    """Wheels by requirement, below one folder."""

    folder: Path

    @property
    def fetch(self) -> Download:
        """Return what downloads from here."""
        interpreter = self.folder / "python"
        if not interpreter.exists():
            interpreter.write_text(PIP.format(python=sys.executable, folder=str(self.folder)))
            interpreter.chmod(0o755)
        return Download(str(interpreter))

    def asked(self) -> list[str]:
        """Return the command lines so far."""
        log = self.folder / "asked"
        return log.read_text().splitlines() if log.exists() else []

    def offer(self, like: DataSet, contents: Mapping[str, bytes]) -> DataSet:
        """Put a wheel with ``contents`` there; return the data set that expects exactly it."""
        with zipfile.ZipFile(self.wheel(like), "w") as wheel:
            for path, raw in contents.items():
                wheel.writestr(path, raw)
        members = (Member(p, len(raw), hashlib.sha256(raw).hexdigest()) for p, raw in contents.items())
        return replace(like, members=tuple(members))

    def wheel(self, chosen: DataSet) -> Path:
        return self.folder / f"{chosen.package}-{chosen.version}.whl"
