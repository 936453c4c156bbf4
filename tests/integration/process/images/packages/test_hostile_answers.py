"""Hostile answers of resolvers, builds and images: none of them is trusted, or followed."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from images.cancellation import CancellationToken
from images.docker_engine import _take_result
from images.errors import BuildCancelled, BuildFailed, HostFault
from images.log import BuildLog
from images.packages import program, resolve
from images.packages.answer import FoundFile, FoundPackage
from images.packages.lock import Lock
from images.packages.probe import parse_facts
from images.packages.resolve import IndexUnavailable, Resolver, Unresolvable
from images.packages.scratch import own_directory, parse_names, remove_tree, scratch
from images.packages.sdist import SourceBuilder, download
from images.packages.unpack import Unpacker, arrange
from images.packages.values import Account, Indexes, Installed, Limits, PythonFacts, Requirements, Source
from images.ports import Step, StepEnd
from runner.adapters.host.users import HostUsers
from runner.server import packages
from tests.fakes.engine.image_engine import FakeEngine
from tests.fakes.patience import patience

FACTS = PythonFacts("3.11", "x86_64", (2, 36), "/usr/bin/python3.11", (), ())
PERSON = Account(64123, 64123)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@as_root
def test_a_directory_that_a_user_swaps_for_a_link_gives_away_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    secret = tmp_path / "roots"
    secret.mkdir()
    (secret / "shadow").write_text("secret")
    home = own_directory(tmp_path / "uv", PERSON)
    seen = []

    def swap(_argv: list[str], directory: Path, *_: object) -> program.Outcome:
        seen.append(sorted(home.iterdir()))
        for each in ("out", "held"):  # what a user may do within what is theirs
            assert (directory / each).stat().st_uid == PERSON.uid
        assert directory.stat().st_uid == 0
        (directory / "out" / "pylock.toml").unlink(missing_ok=True)
        (directory / "out" / "pylock.toml").symlink_to(secret / "shadow")
        return program.Outcome(0, "")

    monkeypatch.setattr(resolve, "run", swap)
    with pytest.raises(BuildFailed, match=r"pylock.toml: cannot be read: Too many"):
        Resolver(tmp_path, Indexes()).resolve(Requirements(("tqdm",)), FACTS, PERSON, CancellationToken())
    assert seen == [[]]  # this process puts nothing into the directory of a user
    assert (secret / "shadow").stat().st_uid == 0
    assert list((tmp_path / "resolving").iterdir()) == []


@as_root
def test_what_is_given_away_is_given_by_descriptor(tmp_path: Path) -> None:
    roots = tmp_path / "roots"
    roots.write_text("secret")
    with scratch(tmp_path / "work", "x-", PERSON) as work:
        (work.directory("out") / "link").symlink_to(roots)
        with pytest.raises(OSError, match="symbolic links"):
            work.give("out")
    assert roots.stat().st_uid == 0


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(400 * 1024**2)


@pytest.fixture(scope="module")
def users() -> Iterator[HostUsers]:
    made = HostUsers()
    yield made
    made.close()


@pytest.fixture(params=["here", pytest.param("worker", marks=as_root)])
def read(request: pytest.FixtureRequest, users: HostUsers) -> Callable[[Path], object]:
    """Reads the answer in a directory, as the daemon has it read."""

    def read(directory: Path) -> object:
        os.chown(directory, PERSON.uid, PERSON.gid) if request.param == "worker" else None
        opened = os.open(directory, os.O_RDONLY)
        try:
            return packages._read_answer(users, PERSON if request.param == "worker" else None, opened)
        finally:
            os.close(opened)

    return read


@pytest.mark.parametrize(
    ("fill", "fact"),
    [
        (make_sparse, "is larger than"),
        (lambda path: path.symlink_to("/etc/shadow"), "cannot be read"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.mkdir(), "is not a regular file"),
        (lambda _path: None, "cannot be read: No such file"),
    ],
    ids=["sparse", "link", "fifo", "directory", "none"],
)
def test_what_a_program_leaves_is_read_only_if_it_is_a_small_file(
    tmp_path: Path, fill: Callable[[Path], object], fact: str, read: Callable[[Path], object]
) -> None:
    fill(tmp_path / "pylock.toml")
    with pytest.raises(BuildFailed, match=rf"^pylock.toml: {fact}[^\n]*$"):
        read(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b"packages = " + b"[" * 100_000,
        b"packages = 5",
        b"packages = [5]",
        b"[[packages]]\nname = '../../etc/x'\nversion = '1'",
        b"[[packages]]\nname = 'x'\nversion = '1'\nwheels = 5",
        b"[[packages]]\nname = 'x'\nversion = '1'\nwheels = [{url = 5}]",
        b"[[packages]]\nname = 'x'\nversion = '1'\nwheels = [{url = 'https://i/x.whl', size = 'x'}]",
        b"[[packages]]\nname = 'x'\nversion = '1'\nsdist = {url = 'https://i/..%2F..%2Fetc%2Fcron.d%2Fx'}",
        b"\xff",
    ],
)
def test_a_lock_that_is_none_is_a_failure(
    text: bytes, tmp_path: Path, read: Callable[[Path], object]
) -> None:
    (tmp_path / "pylock.toml").write_bytes(text)
    with pytest.raises(BuildFailed, match=r"^the answer of the resolver [^\n]*$"):
        read(tmp_path)


def test_an_answer_comes_back_as_values(tmp_path: Path, read: Callable[[Path], object]) -> None:
    wheel = "{url = 'https://i/a%2Bb/x-1.whl', size = 3, hashes = {sha256 = 'ab'}}"
    (tmp_path / "pylock.toml").write_text(f"[[packages]]\nname = 'x'\nversion = '1'\nwheels = [{wheel}]")
    assert read(tmp_path) == (
        FoundPackage("x", "1", FoundFile("x-1.whl", "https://i/a%2Bb/x-1.whl", "ab", 3)),
    )


@pytest.mark.parametrize("text", [b"{}", b"-r /etc/passwd", b"\xff", b"x" * 2000, b"a\n" * 11, b"a\x00"])
def test_an_answer_of_another_shape_is_a_failure(text: bytes) -> None:
    with pytest.raises(BuildFailed, match=r"x-1\.tar\.gz: its answer"):
        parse_names(text, "x-1.tar.gz", 10)


@dataclass
class PlayedEngine(FakeEngine):
    """Answers each step with what was given for its mode."""

    answers: dict[str, bytes] = field(default_factory=dict)

    def step(self, step: Step, token: CancellationToken | None = None) -> StepEnd:
        del token
        self.steps.append(step)
        assert step.result is not None
        _take_result(step, step.result, [(self.answers[step.argv[4]], None)], lambda: None)
        return StepEnd(0, "")


class NoPackages(Unpacker):
    """Has no packages, which a build here does not need."""


class PlayedResolver(Resolver):
    """Resolves everything into an empty lock."""

    def resolve(self, *_: object) -> Lock:
        return Lock("3.11", "x86_64", ())


def build(tmp_path: Path, **answers: bytes) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    source = folder / "x-1.tar.gz"
    source.write_bytes(b"an archive")
    digest = hashlib.sha256(b"an archive").hexdigest()
    indexes = Indexes(find_links=(str(folder),))
    engine = PlayedEngine(answers={"declared": b"", "requires": b"", "build": b"", **answers})
    builder = SourceBuilder(
        engine=lambda: engine,
        resolver=PlayedResolver(tmp_path, indexes),
        unpacker=NoPackages(tmp_path, indexes),
        image="image",
        facts=FACTS,
        account=None,
        directory=tmp_path / "built" / "own",
        limits=Limits(),
    )
    with BuildLog(tmp_path / "log") as log:
        return builder._built(Source("x", "1", "x-1.tar.gz", source.as_uri(), digest), log).wheel


def test_a_build_gives_its_wheel_by_its_output_alone(tmp_path: Path) -> None:
    wheel = build(tmp_path, build=b"x-1-py3-none-any.whl\nPK content")
    assert wheel.name == "x-1-py3-none-any.whl"
    assert wheel.read_bytes() == b"PK content"


@pytest.mark.parametrize(
    ("answers", "fact"),
    [
        ({"requires": b"--index-url=x"}, "x 1: its build: its answer is not a list of 200"),
        ({"declared": b"\xff"}, "x 1: its build: its answer is no text"),
        ({"build": b"5"}, "x 1: its build makes no wheel"),
        ({"build": b"../../../etc/x.whl\nPK"}, "x 1: its build makes no wheel"),
        ({"build": b""}, "x 1: its build makes no wheel"),
    ],
)
def test_a_build_that_answers_anything_else_fails(
    tmp_path: Path, answers: dict[str, bytes], fact: str
) -> None:
    with pytest.raises(Unresolvable, match=fact):
        build(tmp_path, **answers)
    assert not any(path.suffix == ".whl" for path in (tmp_path / "built").rglob("*"))


def test_a_result_that_is_too_large_ends_its_command(tmp_path: Path) -> None:
    killed: list[bool] = []
    stream = ((b"x" * 600, None) for _ in range(1000))
    with (tmp_path / "result").open("wb") as file:
        step = Step("image", ("python3",), result=file, most_bytes=1000)
        with pytest.raises(BuildFailed, match="larger than 1000 bytes"):
            _take_result(step, file, stream, lambda: killed.append(True))
    assert killed == [True]
    assert (tmp_path / "result").stat().st_size == 600


def test_a_build_leaves_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([2**30 + 4096, 2**30])
    monkeypatch.setattr(
        "images.packages.program.disk_usage", lambda _: SimpleNamespace(total=2**40, free=next(free))
    )
    with pytest.raises(Unresolvable, match="larger than 1024 bytes"):
        build(tmp_path, build=b"x-1-py3-none-any.whl\n" + b"\0" * 4096)
    (tmp_path / "index").rename(tmp_path / "before")
    with pytest.raises(HostFault, match="is nearly full; the rest is kept for others"):
        build(tmp_path)


@as_root
def test_what_an_earlier_person_of_a_uid_has_cached_goes_to_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = []
    for name in ("ann", "ann", "../bob"):
        monkeypatch.setattr("pwd.getpwuid", lambda _, name=name: SimpleNamespace(pw_name=name))
        homes.append(own_directory(tmp_path / "uv", PERSON))
    assert homes[0] == homes[1] != homes[2]
    assert {home.parent for home in homes} == {tmp_path / "uv"}
    assert {home.stat().st_uid for home in homes} == {PERSON.uid}


def test_a_source_is_taken_from_an_index_and_not_from_this_host(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "secret").write_text("x")
    token, indexes = CancellationToken(), Indexes(find_links=(str(tmp_path / "links"),))
    for url in ((tmp_path / "secret").as_uri(), f"file://{tmp_path}/links/../secret", "ftp://host/x"):
        source = Source("x", "1", "x.tar.gz", url, "0")
        with pytest.raises(Unresolvable, match="is at no address of an index"):
            download(source, tmp_path / "to", Resolver(tmp_path, indexes), None, token)
    assert not (tmp_path / "to").exists()


@pytest.fixture
def slow_server() -> Iterator[tuple[str, Event]]:
    """Yield the address of a server that begins its answers, and the event that it has begun one."""
    began, over = Event(), Event()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            part = b"HTTP/1.1 100 Continue\r\n\r\n"
            if self.path == "/body":
                self.send_response(200)
                self.end_headers()
                part = b"x"
            with suppress(OSError):
                while not over.wait(0.01):
                    self.wfile.write(part)
                    began.set()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", began
        over.set()
        server.shutdown()


@pytest.mark.parametrize("place", ["head", "body"])
@pytest.mark.parametrize("cancelled", [True, False])
def test_a_server_that_answers_a_byte_at_a_time_delays_no_end_of_a_download(
    tmp_path: Path, slow_server: tuple[str, Event], place: str, *, cancelled: bool
) -> None:
    address, began = slow_server
    token = CancellationToken()
    resolver = Resolver(tmp_path, Indexes(), Limits(600 if cancelled else 3))
    source = Source("x", "1", "x.tar.gz", f"{address}/{place}", "0")
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(download, source, tmp_path / "to", resolver, None, token)
        if cancelled:
            assert began.wait(patience())
            token.cancel("nobody waits")
        try:
            with pytest.raises(
                (BuildFailed, BuildCancelled), match="nobody waits" if cancelled else "longer than 3 s"
            ):
                ended.result(patience())
        finally:
            token.cancel()


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Yield a directory that every user reaches."""
    with TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


@as_root
def test_a_source_is_downloaded_with_the_rights_and_credentials_of_whoever_resolves(open_path: Path) -> None:
    seen: list[str | None] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(200 if self.path == "/x.tar.gz" else 404)
            self.end_headers()
            self.wfile.write(b"an archive")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    secret = open_path / "netrc"
    secret.write_text("machine 127.0.0.1 login me password secret\n")
    secret.chmod(0o600)
    digest, token = hashlib.sha256(b"an archive").hexdigest(), CancellationToken()
    resolver = Resolver(open_path / "cache", Indexes(netrc=secret), Limits(600), trusted=PERSON)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        source = Source("x", "1", "x.tar.gz", f"http://127.0.0.1:{server.server_port}/x.tar.gz", digest)
        download(source, open_path / "to", resolver, Account(64124, 64124), token)
        gone = replace(source, url=f"http://127.0.0.1:{server.server_port}/gone")
        with pytest.raises(IndexUnavailable, match="gone: HTTPError: HTTP Error 404: Not Found"):
            download(gone, open_path / "to", resolver, Account(64124, 64124), token)
        server.shutdown()
    assert (open_path / "to").read_bytes() == b"an archive"
    assert seen == ["Basic bWU6c2VjcmV0"] * 2
    assert list((open_path / "cache" / "resolving").iterdir()) == []


def facts_of(**changed: object) -> dict[str, object]:
    known: dict[str, object] = {
        "python": "3.11",
        "patch": 2,
        "machine": "x86_64",
        "glibc": "2.36",
        "executable": "/usr/bin/python3",
    }
    known |= {"site_dirs": ["/usr/lib"], "scripts": [], "installed": {}, "prefix": "/opt/packages"}
    return {**known, **changed}


def test_names_of_packages_of_an_image_never_become_other_paths() -> None:
    held = {"../../etc/x": ["1", []], "tqdm": ["../1", []], "idna": ["3.7", ["a\nb", 5, "c>1"]]}
    found = parse_facts(facts_of(installed=held))
    assert found.installed == (Installed("idna", "3.7", ("c>1",)),)


def test_names_of_programs_of_an_image_never_become_other_paths() -> None:
    odd = [
        "bin/x",
        "/usr/bin/..",
        "/usr/bin/a b",
        "/usr/bin/a\nb",
        "/usr/\nbin/x",
        "/usr/bin/",
        "/usr/bin/pip3",
    ]
    assert parse_facts(facts_of(scripts=[*odd, "/usr/bin/torchrun"])).scripts == ("/usr/bin/torchrun",)


def test_the_runner_imports_its_own_packages_and_not_those_of_a_job() -> None:
    """A job may call it, to submit the next one, and bring another version of what it imports."""
    kept = ("/opt/runner/bin/runner-x", "/opt/runner/bin/myrunner", "/runner/bin/torchrun")
    assert parse_facts(facts_of(scripts=["/opt/runner/bin/runner", *kept])).scripts == kept


@pytest.mark.parametrize(
    "changed",
    [
        {"python": "3.11/../.."},
        {"patch": -1},
        {"machine": "x/y"},
        {"prefix": "/etc"},
        {"executable": "/a\nb"},
    ],
    ids=str,
)
def test_an_image_that_says_something_else_has_no_python(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is not what was asked for"):
        parse_facts(facts_of(**changed))


@pytest.mark.parametrize(
    ("uid", "gid"), [(-1, 5), (2**32 - 1, 5), (5, -1), (5, 2**32 - 1), (0, 5), (2**32, 5)]
)
def test_ids_that_change_nothing_are_no_account(uid: int, gid: int) -> None:
    with pytest.raises(ValueError, match="not the ids of a user"):
        Account(uid, gid)


def test_a_line_without_an_end_is_told_in_parts(tmp_path: Path) -> None:
    told: list[str] = []
    argv = ["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"]
    run = program.run(argv, tmp_path, dict(os.environ), None, Limits(), CancellationToken(), told.append)
    assert len(run.output) <= program.MAX_OUTPUT
    assert max(map(len, told)) <= program.MAX_LINE


def test_a_list_of_files_of_any_size_is_not_read(tmp_path: Path) -> None:
    """A wheel of 300 KB unpacks to one of 300 MB."""
    about = tmp_path / "lib" / "python3.11" / "site-packages" / "evil-1.0.dist-info"
    about.mkdir(parents=True)
    with (about / "RECORD").open("wb") as record:
        record.truncate(2**40)
    with pytest.raises(BuildFailed, match=r"^evil-1.0: its list of files \(RECORD\) is larger than 64 MiB$"):
        arrange(tmp_path, FACTS)


def test_a_directory_of_any_depth_is_removed(tmp_path: Path) -> None:
    place = os.open(tmp_path, os.O_RDONLY)
    os.mkdir("deep", dir_fd=place)
    deeper = os.open("deep", os.O_RDONLY, dir_fd=place)
    for _ in range(5000):
        os.close(place)
        place = deeper
        os.mkdir("d", dir_fd=place)
        deeper = os.open("d", os.O_RDONLY, dir_fd=place)
    os.close(place)
    os.close(deeper)
    remove_tree(tmp_path / "deep")
    assert not (tmp_path / "deep").exists()


KEEPER = """
import ctypes, os, signal, sys
ended, mode = sys.argv[1:]
program = os.getpid()
here, there = os.pipe()
if os.fork() == 0:
    os.setsid()
    if mode == "traces":
        seize = ctypes.CDLL(None).ptrace(ctypes.c_long(0x4206), ctypes.c_long(program), None, None)
        os.close(1), os.close(2)
    os.write(there, b"x" if mode != "traces" or seize == 0 else b"-")
    if mode == "floods":
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        while True:
            os.write(1, bytes(65536))
    open(ended).read()  # until the test ends
    os._exit(0)
if os.read(here, 1) != b"x":
    print("no tracer")
if mode == "floods":
    signal.pause()
print("done")
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the traced one is not reaped
@pytest.mark.parametrize("mode", ["keeps", "floods", "traces"])
def test_what_another_process_of_a_user_does_to_the_resolver_delays_its_end_in_no_way(
    mode: str, tmp_path: Path
) -> None:
    ended = tmp_path / "ended"
    os.mkfifo(ended)
    found: Queue[str] = Queue()

    def run() -> None:
        argv = [sys.executable, "-c", KEEPER, str(ended), mode]
        try:
            done = program.run(argv, tmp_path, {}, None, Limits(600), CancellationToken())
            found.put(f"{done.exit_code} {done.output}")
        except BuildFailed as error:
            found.put(str(error))

    Thread(target=run, daemon=True).start()
    try:
        said = found.get(timeout=patience(10))
    finally:
        os.close(os.open(ended, os.O_RDWR))
    if "no tracer" in said:
        pytest.skip("this host lets no process trace another one")
    assert ("0 done" if mode == "keeps" else "runs on; it was ended") in said
