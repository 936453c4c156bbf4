"""Requirements become a lock and a layer, with the real resolver and a folder of wheels."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from threading import enumerate as enumerate_threads
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from images.errors import BuildCancelled, BuildFailed, HostFault
from images.log import BuildLog
from images.packages.family import own_family
from images.packages.lock import Lock
from images.packages.program import find_uv
from images.packages.resolve import IndexUnavailable, Unresolvable
from images.packages.store import PackageSettings, PackageStore
from images.packages.values import COMPANIONS, FAMILY, Indexes, Limits, PythonFacts, Requirements
from tests.fakes.engine.image_engine import FakeEngine
from tests.fakes.engine.wheel_folder import make_wheel

INSTALLED = {"torch": ["2.13.0+cpu", ["numpy"]], "numpy": ["2.4.6", []]}
FACTS = {
    "python": "3.11",
    "patch": 2,
    "machine": "x86_64",
    "glibc": "2.36",
    "executable": "/usr/bin/python3.11",
    "site_dirs": ["/opt/venv/lib/python3.11/site-packages"],
    "scripts": [],
    "installed": INSTALLED,
    "prefix": "/opt/packages",
}


class Site:
    """A package store with a folder of wheels and a fake engine with one image."""

    def __init__(self, root: Path) -> None:
        self.wheels = root / "wheels"
        self.engine = FakeEngine(facts=dict(FACTS))
        self.image = self.engine.add("runner-cpu:h-1").id
        self.settings = PackageSettings(
            root / "cache", Indexes(find_links=(str(self.wheels),), offline=True), limits=Limits(60)
        )
        self.store = PackageStore(self.settings, lambda: self.engine)
        self.log = BuildLog(root / "log.txt")
        make_wheel(self.wheels, "bar", "1.0", requires=("baz>=2",), scripts={"bar": "bar:main"})
        make_wheel(self.wheels, "baz", "2.0")
        make_wheel(self.wheels, "needs-old-torch", "1.0", requires=("torch<2",))

    def facts(self) -> PythonFacts:
        return self.store.facts(self.image)

    def lock(self, *lines: str) -> str:
        return self.store.resolve(Requirements(lines), self.image, None, self.log).text

    def ensure(self, lock: str) -> str:
        return self.store.ensure(lock, self.image, "cpu", self.log)

    def layer(self) -> dict[str, tarfile.TarInfo]:
        [body] = self.engine.loaded.values()
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            return {member.name: member for member in tar}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    with made.log:
        yield made


def test_requirements_become_a_lock_with_hashes(site: Site) -> None:
    text = site.lock("bar")
    wheel = site.wheels / "bar-1.0-py3-none-any.whl"
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in text
    assert 'name = "baz"' in text


def test_torch_comes_from_the_image(site: Site) -> None:
    text = site.lock("torch>=2", "bar")
    assert '"torch" = "2.13.0+cpu"' in text
    assert '"numpy" = "2.4.6"' in text
    assert 'name = "torch"' not in text


def test_odd_versions_in_an_image_do_not_matter(site: Site) -> None:
    odd = {"distro-info": ["1.1build1", []], "certifi": ["2020.06.20", []], "gpg": ["1.16.0-unknown", []]}
    site.engine.facts["installed"] = {**INSTALLED, **odd}
    text = site.lock("bar", "certifi>=2020.6")
    assert '"certifi" = "2020.6.20"' in text
    assert site.ensure(text)


def test_a_lock_becomes_one_layer_on_the_image(site: Site) -> None:
    made = site.ensure(site.lock("bar"))
    image = site.engine.image(made)
    assert image is not None
    assert image.labels["runner.kind"] == "packages"
    names = site.layer()
    assert "opt/packages/lib/python3.11/site-packages/bar/__init__.py" in names
    assert names["opt/packages/bin/bar"].mode == 0o755
    assert len(site.engine.layers[made]) == 2


def test_the_same_lock_gives_the_same_layers_and_is_built_once(site: Site, tmp_path: Path) -> None:
    lock = site.lock("bar")
    made = site.ensure(lock)
    site.engine.loaded.clear()
    assert site.ensure(lock) == made
    assert site.engine.loaded == {}
    elsewhere = Site(tmp_path / "elsewhere")
    with elsewhere.log:
        again = elsewhere.ensure(lock.replace(str(site.wheels), str(elsewhere.wheels)))
    assert elsewhere.engine.layers[again] == site.engine.layers[made]


def test_a_lock_for_another_python_than_this_one_is_unpacked(site: Site) -> None:
    """The Python of the daemon's host and that of an image have nothing to do with each other."""
    other = "3.14" if sys.version_info[:2] != (3, 14) else "3.13"
    site.engine.facts = {**FACTS, "python": other}
    other_image = site.engine.add("theirs:1").id
    lock = site.store.resolve(Requirements(("bar",)), other_image, None, site.log).text
    assert f'requires-python = "=={other}.*"' in lock
    site.store.ensure(lock, other_image, "cpu", site.log)
    assert f"opt/packages/lib/python{other}/site-packages/bar/__init__.py" in site.layer()


def test_the_python_of_an_image_is_known_to_its_patch(site: Site) -> None:
    about = "Metadata-Version: 2.1\nName: newer\nVersion: 1.0\nRequires-Python: >=3.11.3\n"
    make_wheel(site.wheels, "newer", "1.0", files={"newer-1.0.dist-info/METADATA": about})
    with pytest.raises(Unresolvable, match=r"newer==1.0.*requires? Python ?>=3\.11\.3"):
        site.lock("newer")
    site.engine.facts["patch"] = 3
    fits = site.engine.add("fits:1").id
    lock = site.store.resolve(Requirements(("newer",)), fits, None, site.log).text
    assert site.store.ensure(lock, fits, "cpu", site.log)


def test_a_script_starts_the_python_of_the_environment(site: Site) -> None:
    site.ensure(site.lock("bar"))
    [body] = site.engine.loaded.values()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        script = tar.extractfile("opt/packages/bin/bar")
        assert script is not None
        assert script.read().startswith(b"#!/opt/packages/bin/python\n")


def test_an_image_that_holds_all_packages_needs_no_layer(site: Site) -> None:
    assert site.ensure(site.lock("numpy", "torch")) == site.image
    assert site.engine.loaded == {}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nosuch", "nosuch"),
        ("bar==9", "bar==9"),
        ("needs-old-torch", "the image has torch==2.13.0"),
        ("baz<2", "baz<2"),
        ("foo bar", "foo bar"),
    ],
)
def test_requirements_without_a_solution_say_why(site: Site, line: str, reason: str) -> None:
    with pytest.raises(Unresolvable) as raised:
        site.lock("bar", line)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_index_that_is_away_is_told_as_such(site: Site) -> None:
    indexes = Indexes(index_url="http://127.0.0.1:9/simple")
    store = PackageStore(PackageSettings(site.settings.cache_dir, indexes), lambda: site.engine)
    with pytest.raises(IndexUnavailable, match=r"127\.0\.0\.1:9"):
        store.resolve(Requirements(("bar",)), site.image, None, site.log)


def test_a_wheel_with_another_hash_is_refused(site: Site) -> None:
    lock = site.lock("bar")
    make_wheel(site.wheels, "baz", "2.0", files={"baz/more.py": "evil = 1\n"})
    with pytest.raises(BuildFailed, match=r"(?i)hash mismatch.*baz"):
        site.ensure(lock)
    assert site.engine.loaded == {}


def test_a_wheel_that_has_vanished_is_named_unless_it_is_kept(site: Site) -> None:
    lock = site.lock("bar")
    site.ensure(lock)
    for wheel in site.wheels.glob("ba*.whl"):
        wheel.unlink()
    site.engine.remove(next(iter(site.engine.loaded)))
    site.engine.loaded.clear()
    assert site.engine.image(site.ensure(lock)) is not None  # from the wheels that were kept
    fresh = PackageSettings(site.settings.cache_dir / "fresh", site.settings.indexes)
    site.engine.remove(next(iter(site.engine.loaded)))
    with pytest.raises(BuildFailed, match=r"^Failed to download `ba[rz]=="):
        PackageStore(fresh, lambda: site.engine).ensure(lock, site.image, "cpu", site.log)


def test_a_cancelled_resolution_ends(site: Site) -> None:
    site.facts()
    site.log.token.cancel()
    with pytest.raises(BuildCancelled):
        site.lock("bar")


def test_a_resolution_that_takes_too_long_is_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = site.wheels / "uv"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr("images.packages.resolve.find_uv", lambda: str(sleeper))
    store = PackageStore(PackageSettings(site.settings.cache_dir, limits=Limits(0.2)), lambda: site.engine)
    with pytest.raises(BuildFailed, match=r"took longer than 0\.2 s"):
        store.resolve(Requirements(("bar",)), site.image, None, site.log)


def test_a_package_that_would_fill_the_disk_is_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = site.lock("bar")
    sleeper = site.wheels / "uv"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr("images.packages.unpack.find_uv", lambda: str(sleeper))
    free = iter([2**40])  # at first, then too little
    monkeypatch.setattr(
        "images.packages.program.disk_usage",
        lambda _: SimpleNamespace(total=2**40, free=next(free, 2**29)),
    )
    with pytest.raises(HostFault, match="is nearly full; the rest is kept for others"):
        site.ensure(lock)


def test_nothing_is_left_behind_but_what_is_kept(site: Site) -> None:
    site.ensure(site.lock("bar"))
    with pytest.raises(Unresolvable):
        site.lock("nosuch")
    for removal in (each for each in enumerate_threads() if each.name == "removal"):
        removal.join()
    kept = {path.name for path in (site.settings.cache_dir / "packages").glob("*/own/*")}
    assert kept == {"cache"}


class SimpleIndex(SimpleHTTPRequestHandler):
    """Serves a directory with the pages of an index."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def index_of(wheels: Path) -> Iterator[str]:
    """Serve the wheels of a folder as an index."""
    for wheel in sorted(wheels.glob("*.whl")):
        page = wheels / "simple" / wheel.name.partition("-")[0].replace("_", "-") / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        with page.open("a") as file:
            file.write(f'<a href="/{quote(wheel.name)}#sha256={digest}">{wheel.name}</a><br>')
    handler = partial(SimpleIndex, directory=str(wheels))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()
        thread.join()


def test_another_torch_and_its_family_come_from_the_index_of_the_accelerator(
    site: Site, tmp_path: Path
) -> None:
    everything, family = tmp_path / "everything", tmp_path / "family"
    make_wheel(everything, "timm", "1.0", requires=("torch", "torchvision", "numpy"))
    make_wheel(everything, "numpy", "2.4.0")
    for folder, local in ((everything, ""), (family, "+cpu")):
        make_wheel(folder, "torch", f"2.12.0{local}", requires=("numpy",))
        make_wheel(folder, "torchvision", f"0.27.0{local}", requires=("torch==2.12.0",))
    make_wheel(everything, "torch", "2.11.0")
    make_wheel(family, "numpy", "1.0")
    with index_of(everything) as url, index_of(family) as torch_url:
        indexes = Indexes(index_url=url, torch={"cpu": torch_url})
        store = PackageStore(
            PackageSettings(tmp_path / "other", indexes, limits=Limits(60)), lambda: site.engine
        )

        def resolve(*lines: str) -> Lock:
            own = own_family(lines, store.facts(site.image))
            return store.resolve(Requirements(lines, own_family=own), site.image, None, site.log)

        lock = resolve("torch==2.12.0", "timm")
        versions = {each.name: each.version for each in lock.packages}
        assert versions == {
            "numpy": "2.4.0",
            "timm": "1.0",
            "torch": "2.12.0+cpu",
            "torchvision": "0.27.0+cpu",
        }
        assert lock.isolated
        made = store.ensure(lock.text, site.image, "cpu", site.log)
        assert site.engine.image(made) is not None
        with pytest.raises(
            Unresolvable, match=r"no version of torch==2\.11\.0 and you require torch==2\.11\.0"
        ):
            resolve("torch==2.11.0")


@pytest.mark.parametrize("build", ["cpu", "cu126", "cu130", "rocm7.2"])
def test_what_is_compiled_against_torch_is_of_the_build_of_the_images_torch(
    site: Site, tmp_path: Path, build: str
) -> None:
    site.engine.facts = {**FACTS, "installed": {"torch": [f"2.13.0+{build}", []], "numpy": ["2.4.6", []]}}
    image = site.engine.add(f"of-{build}:1").id
    everything, family = tmp_path / "everything", tmp_path / "family"
    make_wheel(everything, "timm", "1.0", requires=("torch", "torchvision"))
    for folder, local in ((everything, ""), (family, f"+{build}")):
        make_wheel(folder, "torch", f"2.13.0{local}")
        make_wheel(folder, "torchvision", f"0.28.0{local}", requires=("torch==2.13.0", "numpy"))
        make_wheel(folder, "torchaudio", f"2.13.0{local}", requires=("torch==2.13.0",))
        make_wheel(folder, "torchvision", f"0.20.0{local}", requires=("torch==2.5.0",))
        make_wheel(folder, "torch", f"2.5.0{local}")
    make_wheel(everything, "numpy", "2.9")
    with index_of(everything) as url, index_of(family) as torch_url:

        def store(**torch: str) -> PackageStore:
            indexes = Indexes(index_url=url, torch=torch)
            settings = PackageSettings(tmp_path / f"store-{len(torch)}", indexes, limits=Limits(60))
            return PackageStore(settings, lambda: site.engine)

        def resolve(*lines: str, **torch: str) -> Lock:
            return store(**torch).resolve(Requirements(lines), image, None, site.log)

        lock = resolve("timm", "torchaudio", cpu=torch_url)  # the accelerator of Requirements
        assert {each.name: each.version for each in lock.packages} == {
            "timm": "1.0",
            "torchaudio": f"2.13.0+{build}",
            "torchvision": f"0.28.0+{build}",
        }
        assert lock.base == {"torch": f"2.13.0+{build}", "numpy": "2.4.6"}
        if build == "cpu":  # any build of torch runs there, so the job gets one of its own
            assert resolve("timm").isolated
        else:
            with pytest.raises(Unresolvable, match=r"torchvision 0\.28\.0 of the index is not of"):
                resolve("timm")
        old = resolve("torch", "torchvision==0.20.0", cpu=torch_url)
        assert {each.name: each.version for each in old.packages} == {
            "torch": f"2.5.0+{build}",
            "torchvision": f"0.20.0+{build}",
        }
        assert old.isolated


def test_what_the_index_of_torch_may_have_comes_from_there_or_else_from_that_of_all_packages(
    site: Site, tmp_path: Path
) -> None:
    site.engine.facts = {**FACTS, "installed": {"torch": ["2.13.0+cu126", []]}}
    image = site.engine.add("of-cu126:1").id
    everything, family = tmp_path / "everything", tmp_path / "family"
    make_wheel(everything, "diffusing", "1.0", requires=("xformers", "torchao", "bits"))
    for name in ("xformers", "torchao", "bits"):
        make_wheel(everything, name, "0.35", requires=("torch>=2.10",))
    make_wheel(family, "xformers", "0.34+cu126", requires=("torch==2.13.0",))
    make_wheel(family, "bits", "0.1", requires=("torch>=2.10",))
    with index_of(everything) as url, index_of(family) as torch_url:
        indexes = Indexes(index_url=url, torch={"cuda": torch_url})
        settings = PackageSettings(tmp_path / "store", indexes, limits=Limits(60))
        store = PackageStore(settings, lambda: site.engine)
        for lines in (("xformers", "torchao", "bits"), ("diffusing",)):
            wanted = Requirements(lines, accelerator="cuda")
            lock = store.resolve(wanted, image, None, site.log)
            found = {each.name: each.version for each in lock.packages if each.name != "diffusing"}
            assert found == {"xformers": "0.34+cu126", "torchao": "0.35", "bits": "0.35"}
            assert lock.base == {"torch": "2.13.0+cu126"}


def test_the_packages_of_torchs_index_are_those_that_uv_knows(tmp_path: Path) -> None:
    """It asks that index for them, which does not answer here."""
    (tmp_path / "nothing").mkdir()
    dead = {"ALL_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1", "UV_HTTP_RETRIES": "0"}
    asked = set()
    with index_of(tmp_path / "nothing") as url:
        options = ["--no-config", "--torch-backend=cu126", f"--default-index={url}", "--no-cache", "-"]
        for name in (*FAMILY, *COMPANIONS, "torchdata", "bitsandbytes", "torchmetrics", "flash-attn"):
            told = subprocess.run(
                [find_uv(), "pip", "compile", *options],
                env={"PATH": os.defpath, **dead},
                input=name,
                capture_output=True,
                text=True,
                check=False,
            )
            asked |= {name} if "/whl/cu126/" in told.stderr else set()
    assert asked == {*FAMILY, *COMPANIONS}


def test_the_environment_of_the_daemon_does_not_reach_the_resolver(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert 'name = "bar"' in site.lock("bar")


def test_the_facts_of_an_image_are_asked_once(site: Site) -> None:
    assert site.facts() == site.facts()
    assert len(site.engine.steps) == 1
    [known] = (site.settings.cache_dir / "packages" / "images").iterdir()
    assert json.loads(known.read_text())["installed"] == INSTALLED


def test_an_image_that_was_asked_less_before_is_asked_again(site: Site) -> None:
    facts = site.facts()
    [known] = (site.settings.cache_dir / "packages" / "images").iterdir()
    known.write_text(json.dumps({key: fact for key, fact in FACTS.items() if key != "scripts"}))
    assert site.facts() == facts
    assert len(site.engine.steps) == 2


def test_no_file_of_the_cache_is_writable_for_others(site: Site) -> None:
    site.ensure(site.lock("bar"))
    homes = [*(site.settings.cache_dir / "packages").glob("*/own")]
    assert homes
    assert all(not home.stat().st_mode & 0o077 for home in homes)


class PrivateIndex(BaseHTTPRequestHandler):
    """An index of one package, which asks for a password."""

    wheel: Path
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.headers["Authorization"] != "Basic " + b64encode(b"me:secret").decode():
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            body = b""
        elif self.path.endswith(".whl"):
            body = self.wheel.read_bytes()
            self.send_response(200)
        else:
            digest = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
            link = f'<a href="/{self.wheel.name}#sha256={digest}">{self.wheel.name}</a>'
            body = link.encode() if self.path == "/simple/baz/" else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    do_HEAD = do_GET  # noqa: N815  (of the base class)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_the_password_of_an_index_is_in_no_lock_layer_or_log(site: Site, tmp_path: Path) -> None:
    handler = type(
        "Handler", (PrivateIndex,), {"wheel": site.wheels / "baz-2.0-py3-none-any.whl", "asked": []}
    )
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1\nlogin me\npassword secret\n")
    netrc.chmod(0o600)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/simple"
        settings = PackageSettings(tmp_path / "other", Indexes(index_url=url, netrc=netrc), limits=Limits(60))
        store = PackageStore(settings, lambda: site.engine)
        text = store.resolve(Requirements(("baz",)), site.image, None, site.log).text
        store.ensure(text, site.image, "cpu", site.log)
        refused = PackageStore(
            PackageSettings(tmp_path / "third", Indexes(index_url=url)), lambda: site.engine
        )
        with pytest.raises(BuildFailed):
            refused.resolve(Requirements(("baz",)), site.image, None, site.log)
        server.shutdown()
        thread.join()
    [layer] = site.engine.loaded.values()
    log = (tmp_path / "log.txt").read_bytes()
    assert b"baz==2.0" in log
    assert not any(b"secret" in each for each in (text.encode(), layer, log))


def test_jobs_that_come_together_build_the_same_packages_once(site: Site, tmp_path: Path) -> None:
    lock = site.lock("bar")

    def ensure(number: int) -> str:
        with BuildLog(tmp_path / f"log-{number}.txt") as log:
            return site.store.ensure(lock, site.image, "cpu", log)

    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(ensure, range(4)))
    assert len(made) == 1
    assert len(site.engine.additions) == 1
