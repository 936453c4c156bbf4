"""The helper does for a daemon without rights what a daemon of root would do, and nothing else."""

import json
import os
import random
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryDirectory, TemporaryFile
from threading import Event, Thread
from typing import Any, BinaryIO, Final

import pytest

from images.records import record
from jobs.contract import AttemptSpec, FileDigest, Manifest, Phase, Status, dump, file_sha256
from jobs.contract.plans.causal_lm import CausalLm
from runner.adapters.host.job_checkpoints import CheckpointVerifier
from runner.adapters.host.mounts import PinnedMounts
from runner.adapters.host.run_files import FilesBelow
from runner.adapters.host.users import HostUsers
from runner.adapters.privileged.checks import Walls
from runner.adapters.privileged.client import PrivilegedClient
from runner.adapters.privileged.interface import PrivilegedRun
from runner.adapters.privileged.remote import (
    RemoteExecutor,
    RemotePackages,
    RemoteRunDirectory,
)
from runner.adapters.privileged.service import make_server
from runner.adapters.privileged.site import PrivilegedSite
from runner.adapters.rpc.frames import MAX_ANSWER_BYTES, receive, send
from runner.agent.attempts.checkpoints import keep_program_start, known_program_start, read_program_start
from runner.agent.ports import RunDirectory
from runner.base.errors import Refused, Unavailable, UsageError
from runner.core.job.attempt import ProgramStart
from runner.core.ports.checkpoints import ProgramFiles
from runner.core.ports.devices import Device
from runner.core.ports.executor import Alive, BatchRequest, ImageGone, Key, LaunchRequest, Limits, Mount
from runner.core.ports.images import BuildFailed
from runner.core.ports.packages import DockerfileRequest, PackageRequest, Unresolvable
from runner.core.ports.users import Owner, User
from tests.fakes.engine.executor import FakeExecutor, World
from tests.fakes.patience import patience

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")

DAEMON_UID: Final = 4242
ANN: Final = Owner(43210, 43210, "43210")
ROOTS: Final = (65532, 65532)
IMAGE: Final = f"sha256:{'a' * 64}"
SPEC: Final = AttemptSpec(job_id="1", attempt=1, lineage=1, workload=CausalLm(data="/data/workload"))
SEEDS: Final = range(4)
MESSAGES: Final = 400


class Images:
    """An engine with one image, which is offered."""

    def ensure(self, accelerator: str, log: Path, job_id: str) -> str:
        log.write_text(f"built {accelerator} for {job_id}\n")
        return IMAGE

    def leave(self, job_id: str) -> None:
        assert job_id

    def close(self) -> None:
        pass

    def pin(self, reference: str, pull: str) -> str:
        return IMAGE if pull == "never" else f"{reference.partition(':')[0]}@{IMAGE}"

    def fetch(self, reference: str, log: Path, job_id: str) -> str:
        log.write_text(f"pulled for {job_id}\n")
        return reference.rpartition("@")[2]

    def resolve(self, reference: str) -> str:
        assert reference == "site/ours:1"
        return IMAGE

    def digest(self, accelerator: str) -> str:
        return f"digest of {accelerator}"


class Packages:
    """An index with one package."""

    def resolve(self, request: PackageRequest, who: User, log: Path, job_id: str) -> str:
        assert (log.name, job_id) == ("packages-1.log", "packages-1")
        if request.lines != ("tiny",):
            raise Unresolvable("no such package", "details")
        return f"lock of {who.uid}"

    def ensure(self, lock: str, image: str, accelerator: str, log: Path, job_id: str) -> str:
        assert (accelerator, image, log.parent.name) == ("cpu", IMAGE, job_id)
        return f"{image} with {lock}"

    def build(self, request: DockerfileRequest, context: BinaryIO, log: Path, job_id: str) -> str:
        assert (request.uid, request.accelerator, log.parent.name) == (ANN.uid, "cpu", job_id)
        return f"{request.image} with {request.path} of {context.read().decode()}"

    def environment(self, lock: str) -> Path | None:
        return Path("/environments") / lock if lock == "tiny" else None

    def evict(self, needed: frozenset[str]) -> None:
        assert needed == {"sha256:1", "sha256:2"}

    def leave(self, job_id: str) -> None:
        assert job_id

    def close(self) -> None:
        pass


@dataclass
class Two:
    """A daemon's end of the connection, and what lies behind the helper."""

    state: Path
    site: PrivilegedSite
    connection: PrivilegedClient
    world: World

    @property
    def directory(self) -> RemoteRunDirectory:
        return self.run("1")

    def run(self, name: str) -> RemoteRunDirectory:
        verifier = CheckpointVerifier(work=self.users)
        return RemoteRunDirectory(self.state / "jobs" / name, ANN, verifier, self.files, self.connection)

    @cached_property
    def users(self) -> HostUsers:
        return HostUsers(connect=self.connection.host.open_spawner)

    def close(self) -> None:
        """Close what the daemon has opened: a process that starts workers ends with its last connection."""
        if "users" in vars(self):
            self.users.close()
        self.connection.connections.close()

    @property
    def files(self) -> FilesBelow:
        return FilesBelow(self.connection.runs, self.state / "jobs")

    def request(self, **changes: Any) -> LaunchRequest:
        run_dir = self.state / "jobs" / "1"
        made = LaunchRequest(
            Key("i1", "1", 1), "tiny", ANN, IMAGE, ("true",), run_dir, run_dir / "attempts/1/log.txt",
            Limits(1.0, 2**28),
        )  # fmt: skip
        return replace(made, **changes)


@pytest.fixture
def two() -> Iterator[Two]:
    with TemporaryDirectory() as place:
        state = Path(place)
        state.chmod(0o755)
        for name in ("jobs", "pins", "images", "data"):
            (state / name).mkdir(mode=0o755)
        users = HostUsers(instead_of_root=ROOTS)
        world = World()
        site = PrivilegedSite(
            walls=Walls(state, DAEMON_UID, ROOTS),
            executor_setting="auto",
            allowed_images={"ours": "site/ours:1", "lab": "lab.example/of/*"},
            make_executor=lambda _kind, instance: FakeExecutor(instance, world),
            images=Images(),
            make_packages=lambda _kind: Packages(),
            image_records=state / "images",
            users=users,
            pins=PinnedMounts(state / "pins", users),
        )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        thread = Thread(target=make_server(site).accept, args=(theirs,))
        thread.start()
        connection = PrivilegedClient(ours)
        made = Two(state, site, connection, world)
        yield made
        made.close()
        ours.close()
        thread.join()
        theirs.close()
        users.close()


# --- what a daemon asks for


def test_a_run_directory_is_made_by_the_helper_and_read_by_the_daemon(two: Two) -> None:
    directory = two.directory
    directory.create()
    paths = directory.prepare(SPEC, {"token": b"hush"})
    assert (paths.attempt_dir.stat().st_uid, directory.secret("token").stat().st_uid) == (ANN.uid, ANN.uid)
    assert directory.secret("token").read_bytes() == b"hush"
    assert directory.spec(paths) == SPEC
    paths.status.write_text(dump(Status(phase=Phase.TRAIN, time=1.0, step=7)))
    os.chown(paths.status, ANN.uid, ANN.gid)
    status = directory.status(paths)
    assert status is not None
    assert status.step == 7
    assert directory.there(paths) == {paths.STATUS}
    assert directory.rates(paths) == ()
    assert not directory.is_lineage_locked(paths)
    assert directory.limit_log(paths, 1024**2, 1, 1) == 0
    directory.keep(1, "exit.json", "{}")
    assert directory.has_kept(1, "exit.json")
    directory.remove_drafts()
    directory.forget_secrets()
    assert not directory.secret("token").exists()


def checkpoint(lineage: Path, step: int) -> Path:
    where = lineage / f"step-{step:08d}"
    where.mkdir()
    (where / "state.pt").write_bytes(b"weights")
    digest = FileDigest(sha256=file_sha256(where / "state.pt"), bytes=7)
    manifest = Manifest(
        contract_version=1,
        job_id="1",
        step=step,
        lineage=1,
        attempt=1,
        revision=1,
        created=0.0,
        files={"state.pt": digest},
    )
    (where / "manifest.json").write_text(dump(manifest))
    for path in (where, *where.iterdir()):
        os.chown(path, ANN.uid, ANN.gid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    return where


def test_checkpoints_are_verified_and_copied_through_the_helper(two: Two) -> None:
    directory = two.directory
    directory.create()
    paths = directory.prepare(SPEC, {})
    checkpoint(paths.lineage_dir, 10)
    saved = directory.saved(paths)
    assert (saved.steps, saved.rejected, saved.unverified) == ((10,), (), ())
    staged = two.run(".canary-0123456789abcdef")
    staged.create()

    def fill(draft: Path) -> None:
        assert draft.stat().st_uid == ANN.uid
        directory.copy_checkpoint(paths, 10, draft)

    staged.seed(1, fill)
    copied = staged.root / "lineages" / "1" / "step-00000010"
    assert [path.stat().st_uid for path in (copied, *copied.iterdir())] == [ANN.uid] * 3
    staged.move("2")
    assert (two.state / "jobs" / "2" / "lineages" / "1").is_dir()
    staged.remove()  # it is gone already


def test_an_executor_is_asked_through_the_helper(two: Two) -> None:
    record(two.state / "images", IMAGE)
    executor, woken = RemoteExecutor(two.connection, "docker", "i1"), Event()
    end = executor.watch(woken.set)
    request = two.request()
    assert executor.plan(request)
    executor.launch(request)
    assert executor.observe() == (Alive(request.key),)
    assert woken.wait(patience())
    executor.signal(request.key, SIGKILL)
    executor.remove(request.key)
    assert executor.observe() == ()
    end()


def test_images_are_asked_through_the_helper(two: Two) -> None:
    images = two.connection.images
    (two.state / "jobs" / "7").mkdir()
    assert images.ensure("cpu", Path("/etc/passwd"), "7") == IMAGE
    assert (two.state / "jobs" / "7" / "build.log").read_text() == "built cpu for 7\n"
    assert images.resolve("site/ours:1") == IMAGE
    assert images.pin("site/ours:1", "always") == IMAGE  # which is not pulled
    assert images.fetch(IMAGE, Path("/etc/passwd"), "7") == IMAGE
    pinned = images.pin("lab.example/of/x:1", "missing")
    assert pinned == f"lab.example/of/x@{IMAGE}"
    assert images.fetch(pinned, Path("/etc/passwd"), "7") == IMAGE
    for other in ("lab.example/of/x:1", "lab.example/x@" + IMAGE, f"sha256:{'b' * 64}"):
        with pytest.raises(BuildFailed, match="is not offered by the settings"):
            images.fetch(other, Path("/etc/passwd"), "7")
    assert images.digest("cpu") == "digest of cpu"
    with pytest.raises(BuildFailed, match="not offered"):
        images.resolve("docker.io/evil:latest")
    images.leave("7")
    images.close()


def test_packages_are_asked_through_the_helper(two: Two) -> None:
    RemoteExecutor(two.connection, "docker", "i1")
    packages, ann = RemotePackages(two.connection), User(ANN.uid, ANN.gid, (), "")
    wanted = PackageRequest(("tiny",))
    assert packages.resolve(wanted, ann, Path("/etc/x"), "packages-1") == f"lock of {ANN.uid}"
    with pytest.raises(Unresolvable, match="no such package") as refused:
        packages.resolve(PackageRequest(("huge",)), ann, Path("/etc/x"), "packages-1")
    assert refused.value.details == "details"
    with pytest.raises(BuildFailed, match="not offered"):
        packages.resolve(replace(wanted, base="evil:latest"), ann, Path("x"), "packages-1")
    with pytest.raises(Refused, match="not on the list of the settings"):
        packages.resolve(replace(wanted, system=("sudo",)), ann, Path("x"), "packages-1")
    with pytest.raises(BuildFailed, match="not offered"):
        packages.ensure("lock", "sha256:evil", "cpu", Path("x"), "7")
    record(two.state / "images", IMAGE)
    assert packages.ensure("lock", IMAGE, "cpu", Path("x"), "7") == f"{IMAGE} with lock"
    with pytest.raises(Refused, match="allow no Debian packages"):
        packages.ensure("[[tool.runner.system]]\n", IMAGE, "cpu", Path("x"), "7")
    asked = DockerfileRequest("Dockerfile", IMAGE, "cpu", ANN.uid)
    with TemporaryFile() as context:
        context.write(b"code")
        context.seek(0)
        with pytest.raises(Refused, match="Dockerfiles are not allowed by the settings"):
            packages.build(asked, context, Path("x"), "7")
        two.site.allows_dockerfiles = True
        context.seek(0)
        assert packages.build(asked, context, Path("x"), "7") == f"{IMAGE} with Dockerfile of code"
        with pytest.raises(BuildFailed, match="not offered"):
            packages.build(replace(asked, image="evil"), context, Path("x"), "7")
    packages.evict(frozenset({"sha256:2", "sha256:1"}))
    assert (packages.environment("tiny"), packages.environment("x")) == (Path("/environments/tiny"), None)
    packages.leave("7")
    packages.leave("packages-1")
    packages.close()


def test_a_source_is_pinned_with_the_rights_of_its_user(two: Two) -> None:
    pins, hers = two.connection.pins, two.state / "hers"
    hers.mkdir(mode=0o700)
    os.chown(hers, ANN.uid, ANN.gid)
    (hers / "a").write_text("seen")
    place = pins.pin(User(ANN.uid, ANN.gid, (), ""), hers, "1-1/0")
    assert (place / "a").read_text() == "seen"
    assert pins.names() == ("1-1",)
    pins.release("1-1")
    for uid in (0, 43211):  # what root asks for is opened as the user of root's jobs
        with pytest.raises(UsageError, match="permission"):
            pins.pin(User(uid, uid, (ANN.gid,), ""), hers, "1-1/0")


def test_files_of_users_are_opened_with_the_groups_that_they_have(two: Two) -> None:
    users = HostUsers(connect=two.connection.host.open_spawner)
    closed = two.state / "closed"
    closed.write_text("for root's group")
    closed.chmod(0o640)
    for who in (User(43211, 43211, (0,), ""), User(43211, 0, (0,), ""), User(0, 0, (0,), "root")):
        assert "permission" in str(users.path_problem(who, closed, "file"))
    closed.chmod(0o644)
    assert users.read_as_user(User(43211, 43211, (), ""), closed) == b"for root's group"
    users.close()


def test_a_daemon_whose_helper_has_ended_is_told_so() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    with ours, pytest.raises(Unavailable, match="helper"):
        PrivilegedClient(ours).attempts.observe()


# --- what no daemon asks for


WRONG_LAUNCHES: Final = [
    ({"owner": Owner(0, 0, "root")}, "no job belongs to root"),
    ({"owner": Owner(43210, 0, "ann")}, "no job belongs to root"),
    ({"owner": Owner(DAEMON_UID, DAEMON_UID, "runner")}, "daemon's user"),
    ({"owner": Owner(43210, 4, "ann")}, "a group of this host"),
    ({"owner": Owner(1, 4, "daemon")}, "is not in this group"),
    ({"owner": Owner(1, 1, "daemon"), "groups": (4,)}, "is not in this group"),
    ({"owner": Owner(1, 1, "daemon"), "groups": (0,)}, "no job belongs to root"),
    ({"key": Key("i2", "1", 1)}, "another store"),
    ({"key": Key("i1", "../1", 1)}, "not an attempt"),
    ({"run_dir": Path("/etc")}, "run directory"),
    ({"log": Path("/var/log/x")}, "log"),
    ({"network": "host"}, "network"),
    ({"limits": Limits(1.0, 0)}, "no limits"),
    ({"mounts": (Mount(Path("/etc"), Path("/data/x")),)}, "mount source"),
    ({"mounts": (Mount(Path("/var/run/docker.sock"), Path("/data/x")),)}, "mount source"),
    ({"batch": BatchRequest(Limits(1.0, 2**30))}, "options of Slurm"),
    ({"devices": (Device("GPU 1; rm", "nvidia", "x"),)}, "device"),
    ({"devices": (Device("GPU-1", "amd", "x", render_node=Path("/dev/sda")),)}, "device node"),
]


@pytest.mark.parametrize(("changes", "problem"), WRONG_LAUNCHES)
def test_a_launch_that_no_daemon_asks_for_is_refused(two: Two, changes: dict[str, Any], problem: str) -> None:
    record(two.state / "images", IMAGE)
    executor = RemoteExecutor(two.connection, "docker", "i1")
    with pytest.raises(Refused, match=problem):
        executor.launch(two.request(**changes))
    assert two.world.launches == []


NOT_MOUNTED: Final = ["pins/2-1/0", "jobs/2/secrets/a", "jobs/1/attempts", "data", "pins/1-1/.."]


@pytest.mark.parametrize("place", NOT_MOUNTED)
def test_only_own_pins_secrets_and_prepared_data_are_mounted(two: Two, place: str) -> None:
    record(two.state / "images", IMAGE)
    executor = RemoteExecutor(two.connection, "docker", "i1")
    with pytest.raises(Refused, match="mount source"):
        executor.launch(two.request(mounts=(Mount(two.state / place, Path("/data/x")),)))
    data = two.state / "data" / "watch"
    data.symlink_to("/etc")
    with pytest.raises(Refused, match="is a link"):
        executor.launch(two.request(mounts=(Mount(data, Path("/data/x")),)))


def test_an_image_that_was_never_offered_is_not_started(two: Two) -> None:
    executor = RemoteExecutor(two.connection, "docker", "i1")
    with pytest.raises(ImageGone):
        executor.launch(two.request())


def test_the_executor_and_the_store_stay_what_they_are(two: Two) -> None:
    executor = RemoteExecutor(two.connection, "docker", "i1")
    RemoteExecutor(two.connection, "process", "i1")
    executor.signal(Key("i1", "1", 1), SIGKILL)
    for kind, instance in (("docker", "i1"), ("process", "i2")):
        with pytest.raises(Refused, match="stay what they are"):
            RemoteExecutor(two.connection, kind, instance)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="another store"):
        executor.remove(Key("i2", "1", 1))
    two.site.executor_setting = "docker"
    with pytest.raises(Refused, match="the settings say"):
        RemoteExecutor(two.connection, "process", "i1")


def test_nothing_is_chosen_before_the_daemon_says_so(two: Two) -> None:
    with pytest.raises(Refused, match="not chosen"):
        two.connection.attempts.observe()
    with pytest.raises(Refused, match="not chosen"):
        two.connection.attempts.plan(two.request())


OUTSIDE: Final = [
    ("1", "../../etc/passwd"),
    ("1", "/etc/passwd"),
    ("1", "attempts/../secrets/token"),
    ("1", "secrets/token"),
    ("1", "attempts/1/link"),
    ("1", "attempts/1/hard"),
    ("1", "attempts/1/pipe"),
    ("1", "attempts/1/away/passwd"),
    ("1", "attempts/1/\0"),
    ("1", "attempts/1/.."),
]


@pytest.mark.parametrize(("run", "path"), OUTSIDE)
def test_nothing_outside_of_a_run_directory_is_opened(two: Two, run: str, path: str) -> None:
    directory = two.directory
    directory.create()
    paths = directory.prepare(SPEC, {"token": b"hush"})
    roots = two.state / "roots"
    roots.write_text("root's")
    roots.chmod(0o600)
    os.link(roots, paths.attempt_dir / "hard")
    (paths.attempt_dir / "link").symlink_to("/etc/passwd")
    (paths.attempt_dir / "away").symlink_to("/etc")
    os.mkfifo(paths.attempt_dir / "pipe")
    with pytest.raises(OSError, match=r"."):
        os.close(two.connection.runs.open_below(run, path, directory=False))


@pytest.mark.parametrize("thing", ["roots", "link"])
def test_nothing_in_the_draft_of_a_lineage_is_given_away(two: Two, thing: str) -> None:
    directory = two.directory
    directory.create()
    roots = two.state / "roots"
    roots.write_text("root's")

    def fill(draft: Path) -> None:
        place = draft / "x"
        os.link(roots, place) if thing == "roots" else place.symlink_to(roots)

    directory.seed(1, fill)
    assert roots.stat().st_uid == 0


# --- noise


def shapes() -> list[dict[str, Any]]:
    """Return one message of each kind, as JSON values."""
    run = {"key": {"run": "1", "uid": ANN.uid, "gid": ANN.gid}}
    canary = {"key": {"run": ".canary-0123456789abcdef", "uid": ANN.uid, "gid": ANN.gid}}
    numbers = {"paths": {"attempt": 1, "lineage": 1}}
    key = {"instance": "i1", "job_id": "1", "attempt": 1}
    spec = json.loads(SPEC.model_dump_json())
    who = {"uid": 1, "gid": 1, "groups": [], "name": ""}
    return [
        {"op": "attempts.use", "kind": "docker", "instance": "i1"},
        {"op": "attempts.signal", "key": key, "signal": 9},
        {"op": "attempts.remove", "key": key},
        {"op": "attempts.observe"},
        {"op": "images.ensure", "accelerator": "cpu", "log": None, "job_id": "1"},
        {"op": "images.resolve", "reference": "site/ours:1"},
        {"op": "pins.pin", "who": who, "path": b"/etc".hex(), "name": "1-1/0"},
        {"op": "pins.release", "name": "1-1"},
        {"op": "run.create", **run},
        {"op": "run.prepare", **run, "spec": spec, "secrets": {"a": "aHVzaA=="}},
        {"op": "run.begin_seed", **run, "lineage": 1},
        {"op": "run.publish_seed", **run, "lineage": 1},
        {"op": "run.move", **run, "name": "3"},
        {"op": "run.remove", **canary},
        {"op": "run.limit_log", **run, **numbers, "quota_bytes": 1, "keep_head": 1, "keep_tail": 1},
        {"op": "run.there", **run, **numbers},
        {"op": "run.keep", **run, "attempt": 1, "name": "exit.json", "text": "{}"},
        {"op": "runs.open_below", "run": "1", "path": "attempts", "directory": True},
    ]


NOISE: Final[list[Any]] = [
    None, True, -1, 0, 2**63, 1e308, "", "..", "../../etc", "/etc/shadow", "a\0b", "\ud800", "x" * 5000,
    [], [[]], {}, {"op": "launch"}, ".canary-../../../../x", "1/../../etc",
]  # fmt: skip


def noise(shape: dict[str, Any], chance: random.Random) -> bytes:
    """Return a message with some values that are wrong, or bytes that are none."""
    made = dict(shape)
    for name, value in made.items():
        if chance.random() < 0.3:
            made[name] = chance.choice(NOISE)
        elif isinstance(value, dict) and name != "spec":
            made[name] = {
                inner: chance.choice(NOISE) if chance.random() < 0.2 else x for inner, x in value.items()
            }
    if chance.random() < 0.1:
        made[chance.choice(["more", "path", "key"])] = chance.choice(NOISE)
    content = json.dumps(made).encode()
    if chance.random() < 0.1:
        at = chance.randrange(len(content))
        content = content[:at] + chance.randbytes(5) + content[at + 1 :]
    return content


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_answered_and_reaches_nothing(two: Two, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  not a secret
    outside = two.state / "roots"
    outside.write_text("root's")
    outside.chmod(0o600)
    before = {path: path.lstat() for path in (outside, Path("/etc/passwd"), Path("/etc/shadow"))}
    connection = two.connection.connections.connect()
    with connection:
        for _ in range(MESSAGES):
            content = noise(chance.choice(shapes()), chance)
            send(connection, content)
            answer, descriptors = receive(connection, MAX_ANSWER_BYTES)
            assert set(json.loads(answer)) <= {"value", "error", "arguments", "cause"}, content
            for descriptor in descriptors:
                real = Path(f"/proc/self/fd/{descriptor}").readlink()
                assert real.is_relative_to(two.state / "jobs"), (content, real)
                os.close(descriptor)
    assert {path: path.lstat() for path in before} == before
    assert {path.name for path in two.state.iterdir()} == {"jobs", "pins", "images", "data", "roots"}
    assert all(stat.S_ISDIR(path.lstat().st_mode) for path in (two.state / "jobs").iterdir())


def test_a_message_that_is_too_long_ends_its_connection_alone(two: Two) -> None:
    connection = two.connection.connections.connect()
    with connection:
        connection.sendall(b"\xff\xff\xff\xff")
        assert connection.recv(1) == b""
    assert two.connection.images.digest("cpu") == "digest of cpu"


def test_checkpoints_of_a_program_are_found_through_the_helper(two: Two) -> None:
    directory = two.directory
    directory.create()
    paths = directory.prepare(SPEC, {})
    wanted = ProgramFiles("/job/home/step-*.pt", 2)
    assert directory.choose_program_checkpoint(paths, wanted, None, is_first=True) is None
    place = two.state / "jobs" / "1" / "homes" / "1" / "step-7.pt"
    place.write_bytes(b"weights")
    os.chown(place, ANN.uid, ANN.gid)
    found = directory.program_saved(paths, wanted)
    assert found.steps + tuple(int(each[5]) for each in found.rejected + found.unverified) == (7,), found
    later = place.with_name("step-9.pt")
    later.write_bytes(b"weights")
    os.chown(later, ANN.uid, ANN.gid)
    chosen = directory.choose_program_checkpoint(paths, wanted, 7, is_first=False)
    assert chosen is not None
    assert (chosen.step, chosen.set_aside) == (7, ("step-9.pt",))
    start = ProgramStart(chosen.step, chosen.path, chosen.set_aside, chosen.directory)
    keep_program_start(directory, paths, 7, start)
    assert read_program_start(directory, paths) == start
    assert known_program_start(directory, paths, None) is None
    directory.tell_terminals(paths, "hello")
    staged = two.run(".canary-0123456789abcdef")
    staged.create()
    staged.seed(1, lambda draft: directory.copy_program_checkpoint(paths, wanted, draft))
    given = staged.root / "lineages/1/set-aside/0/step-7.pt"
    assert (given.read_bytes(), given.stat().st_uid) == (b"weights", ANN.uid)


def test_the_files_of_a_program_are_read_with_the_rights_of_their_owner_alone(two: Two) -> None:
    """Root could read the second one; whoever takes over a parser of formats is the owner, and no more."""
    directory = two.directory
    directory.create()
    paths = directory.prepare(SPEC, {})
    wanted = ProgramFiles("/job/home/step-*.json", 2)
    home = two.state / "jobs" / "1" / "homes" / "1"
    for step, content, mode in ((7, "{}", 0o600), (8, "{}", 0o000), (9, "{", 0o600)):
        place = home / f"step-{step}.json"
        place.write_text(content)
        place.chmod(mode)
        os.chown(place, ANN.uid, ANN.gid)
    found = directory.program_saved(paths, wanted)
    assert found.steps == (7,)
    assert found.rejected == (
        "step-9.json: is no complete JSON",
        "step-8.json: cannot be read: Permission denied",
    )


def test_a_checkpoint_of_many_files_with_long_names_is_read_in_several_requests(two: Two) -> None:
    directory = two.directory
    directory.create()
    paths = directory.prepare(SPEC, {})
    place = two.state / "jobs" / "1" / "homes" / "1" / "step-7"
    place.mkdir()
    os.chown(place, ANN.uid, ANN.gid)
    for number in range(1000):
        file = place / f"{number:04}{'ö' * 60}.json"
        file.write_text("{" if number == 999 else "{}")
        os.chown(file, ANN.uid, ANN.gid)
    found = directory.program_saved(paths, ProgramFiles("/job/home/step-*", 2))
    [rejected] = found.rejected
    assert rejected.startswith("step-7: 0999")
    assert rejected.endswith("is no complete JSON")


READ_HERE: Final = {
    *("paths", "secret", "log_times", "highest_numbers", "has_kept"),  # names, and directories of root
    *("spec", "status", "result", "effective", "trace", "rates"),  # opened by the helper
    *("log_status", "log_numbers", "tail", "open"),  # the same
    *(
        "saved",
        "copy_checkpoint",
        "room_to_save",
        "weights",
    ),  # by a worker of the owner
    *("program_saved", "choose_program_checkpoint", "copy_program_checkpoint", "read_numbers"),  # the same
}
"""Methods of a run directory that need no right of their own in a daemon that has given up root."""


FILLED_HERE: Final = {"seed", "make_work"}
"""Written to by the daemon between two methods that the helper does."""


def test_every_method_of_a_run_directory_is_read_here_or_asked_of_the_helper() -> None:
    """A new method needs a decision: without rights it would find nothing, in silence."""
    methods = {name for name in vars(RunDirectory) if not name.startswith("_")} - {"root"}
    asked = {name for name in (*vars(RemoteRunDirectory), *vars(PrivilegedRun)) if not name.startswith("_")}
    assert methods - asked - FILLED_HERE == READ_HERE
