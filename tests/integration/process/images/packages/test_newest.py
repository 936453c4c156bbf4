"""The newest release that fits wins, whether it has a wheel or not: the answer of ``uv`` for the same index.

``uv`` itself may run the builds here; the resolver of the runner runs none, and a container does, played by a
fake engine.
"""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from images.cancellation import CancellationToken
from images.log import BuildLog
from images.packages.program import find_uv
from images.packages.resolve import Unresolvable
from images.packages.store import PackageSettings, PackageStore
from images.packages.values import Indexes, Limits, Requirements
from images.ports import Step, StepEnd
from tests.fakes.engine.image_engine import FakeEngine
from tests.fakes.engine.wheel_folder import make_wheel

BACKEND = """\
import os
open(os.environ.get("TRAP", "/nonexistent/trap"), "a").write("x")
def prepare_metadata_for_build_wheel(place, settings=None):
    inner = os.path.join(place, "{name}-{version}.dist-info")
    os.makedirs(inner)
    with open(os.path.join(inner, "METADATA"), "w") as file:
        file.write({about!r})
    return os.path.basename(inner)
def build_wheel(*_):
    raise RuntimeError("only asked for what it needs")
"""

FACTS = {
    "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
    "patch": sys.version_info[2],
    "machine": os.uname().machine,
    "glibc": "2.36",
    "executable": sys.executable,
    "site_dirs": [],
    "scripts": [],
    "installed": {},
    "prefix": "/opt/packages",
}


def about(name: str, version: str, requires: tuple[str, ...], kind: str = "2.1") -> str:
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    return f"Metadata-Version: {kind}\nName: {name}\nVersion: {version}\n{needs}"


def make_source(
    folder: Path, name: str, version: str, requires: tuple[str, ...] = (), *, declared: bool = False
) -> None:
    """Make a source distribution that says what it needs in words, or only when it is run."""
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    told = about(name, version, requires)
    files = {
        "pyproject.toml": project,
        "backend.py": BACKEND.format(name=name, version=version, about=told),
        "PKG-INFO": about(name, version, requires, "2.2") if declared else about(name, version, (), "1.0"),
        "ABOUT": told,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as tar:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))


@dataclass
class BuildingEngine(FakeEngine):
    """Makes the wheel of a source distribution, as a container would."""

    ends: int = 0
    says: str = ""
    """How a build ends, and what it says."""

    def step(self, step: Step, token: CancellationToken | None = None) -> StepEnd:
        if len(step.argv) < 5 or step.argv[4] not in {"declared", "requires", "build"}:
            return super().step(step, token)
        assert step.result is not None
        if step.argv[4] != "build":
            step.result.write(b"")
            return StepEnd(0, "")
        if self.ends:
            return StepEnd(self.ends, self.says)
        with tarfile.open(step.files["/run/build/source"]) as tar:
            [top] = {member.name.partition("/")[0] for member in tar}
            told = tar.extractfile(f"{top}/ABOUT")
            assert told is not None
            text = told.read()
        name, _, version = top.rpartition("-")
        top, body = f"{name.replace('-', '_')}-{version}", io.BytesIO()
        with zipfile.ZipFile(body, "w") as wheel:
            wheel.writestr(f"{top}.dist-info/METADATA", text)
            wheel.writestr(
                f"{top}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{top}.dist-info/RECORD", "")
        step.result.write(f"{top}-py3-none-any.whl\n".encode() + body.getvalue())
        return StepEnd(0, "")


class Pages(SimpleHTTPRequestHandler):
    """Serves a directory with the pages of an index."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """An index with releases of many kinds, and a file that a build would write to."""
    place = tmp_path_factory.mktemp("index")
    files = place / "files"
    make_wheel(files, "config", "1.3", requires=("grammar==4.9",))
    make_wheel(files, "config", "1.4rc1")
    make_wheel(files, "config", "0.11")
    make_source(files, "grammar", "4.9", ("helper>=1",))
    make_source(files, "grammar", "4.8")
    make_wheel(files, "helper", "1.5")
    make_wheel(files, "mixed", "1.0")
    make_source(files, "mixed", "2.0", ("helper<1.5",), declared=True)
    make_wheel(files, "helper", "1.4")
    make_source(files, "elsewhere", "2.0", declared=True)
    make_wheel(files, "elsewhere", "2.0", tag="cp39-cp39-macosx_11_0_arm64")
    make_wheel(files, "elsewhere", "1.0")
    make_source(files, "chain", "3.0", ("grammar",))
    make_wheel(files, "chain", "2.0")
    make_source(files, "odd-name", "1.0.post2")
    make_source(files, "rival", "2.0", ("helper<1",))
    make_wheel(files, "rival", "1.0")
    for file in sorted(files.iterdir()):
        name = file.name.partition("-")[0] if file.suffix == ".whl" else file.name.rpartition("-")[0]
        page = files / "simple" / name.replace("_", "-") / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        with page.open("a") as out:
            out.write(f'<a href="/{file.name}#sha256={digest}">{file.name}</a><br>')
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Pages, directory=str(files))) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple", place / "trap"
        server.shutdown()
        thread.join()


def of_uv(url: str, lines: tuple[str, ...], place: Path, trap: Path) -> dict[str, str] | None:
    """Return the versions that uv finds if it may run what it likes; None: no solution."""
    (place / "requirements.txt").write_text("\n".join(lines))
    options = ["--no-config", "--quiet", f"--default-index={url}", f"--cache-dir={place / 'cache'}"]
    argv = [find_uv(), "pip", "compile", *options, "--format=pylock.toml", f"--python={sys.executable}"]
    environment = {"PATH": os.defpath, "HOME": str(place), "TRAP": str(trap)}
    argv.append(str(place / "requirements.txt"))
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    return {each["name"]: each["version"] for each in tomllib.loads(done.stdout).get("packages", ())}


def of_runner(url: str, lines: tuple[str, ...], place: Path) -> dict[str, str] | None:
    engine = BuildingEngine(facts=json.loads(json.dumps(FACTS)))
    image = engine.add("runner-cpu:h-1").id
    store = PackageStore(PackageSettings(place / "runner", Indexes(url), limits=Limits(60)), lambda: engine)
    with BuildLog(place / "log") as log:
        try:
            lock = store.resolve(Requirements(lines), image, None, log)
        except Unresolvable:
            return None
    return {each.name: each.version for each in lock.packages}


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (("config",), {"config": "1.3", "grammar": "4.9", "helper": "1.5"}),
        (("config>=1.3",), {"config": "1.3", "grammar": "4.9", "helper": "1.5"}),
        (("config>=1.4rc1",), {"config": "1.4rc1"}),
        (("config", "grammar<4.9"), {"config": "0.11", "grammar": "4.8"}),
        (("mixed",), {"mixed": "2.0", "helper": "1.4"}),
        (("mixed", "helper>=1.5"), {"mixed": "1.0", "helper": "1.5"}),
        (("elsewhere",), {"elsewhere": "2.0"}),
        (("chain",), {"chain": "3.0", "grammar": "4.9", "helper": "1.5"}),
        (("odd_name",), {"odd-name": "1.0.post2"}),
        (("rival", "helper"), {"rival": "1.0", "helper": "1.5"}),
        (("grammar>5",), None),
    ],
)
def test_the_versions_are_those_of_uv(
    index: tuple[str, Path], tmp_path: Path, lines: tuple[str, ...], found: dict[str, str] | None
) -> None:
    url, trap = index
    trap.unlink(missing_ok=True)
    mine = of_runner(url, lines, tmp_path)
    assert not trap.exists()  # nothing of a package was executed here
    assert mine == of_uv(url, lines, tmp_path, trap)
    assert mine == found


VERBOSE = "; its whole output: --verbose"


@dataclass(frozen=True)
class Failing:
    """Build that fails."""

    wanted: str
    told: str
    says: str = ""
    ends: int = 1


@pytest.mark.parametrize(
    "failing",
    [
        Failing(
            "grammar==4.9",
            f"grammar 4.9: its build fails: x.c:1:1: fatal error: x.h: No such file{VERBOSE}",
            "gcc -c x.c\nx.c:1:1: fatal error: x.h: No such file\n",
        ),
        Failing(
            "config==1.3",
            f"grammar 4.9, which config needs: its build fails: ValueError: 3{VERBOSE}",
            "ValueError: 3\n",
        ),
        Failing(
            "mixed==2.0",
            "mixed 2.0: its build fails: it is killed, so it may need more memory; it says nothing",
            ends=137,
        ),
    ],
)
def test_a_build_that_fails_is_told_with_its_package_its_cause_and_what_needs_it(
    index: tuple[str, Path], tmp_path: Path, failing: Failing
) -> None:
    engine = BuildingEngine(facts=json.loads(json.dumps(FACTS)), ends=failing.ends, says=failing.says)
    image = engine.add("runner-cpu:h-1").id
    settings = PackageSettings(tmp_path / "runner", Indexes(index[0]), limits=Limits(60))
    with BuildLog(tmp_path / "log") as log, pytest.raises(Unresolvable) as failed:
        PackageStore(settings, lambda: engine).resolve(Requirements((failing.wanted,)), image, None, log)
    assert str(failed.value) == failing.told
    assert failed.value.details == failing.says
