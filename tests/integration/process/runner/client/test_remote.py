"""``runner --host ssh://...`` through a real sshd on the loopback."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.base.errors import Refused
from runner.client.autostart import Endpoint
from runner.client.client import Client
from runner.client.http import ErrorResponse
from tests.fakes.daemon.ports import free_port
from tests.fakes.daemon.service import Service, service, until
from tests.fakes.patience import patience

ROOT = Path(__file__).parents[5]

CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {place}/host_key
PidFile {place}/pid
AuthorizedKeysFile {place}/authorized/%u
StrictModes no
UsePAM no
PermitRootLogin yes
AllowStreamLocalForwarding {forwards}
"""

SSH = """#!/bin/sh
exec {ssh} -F none -i {place}/key -o IdentitiesOnly=yes -o StrictHostKeyChecking=no \\
    -o UserKnownHostsFile={place}/known -o LogLevel=ERROR "$@"
"""

THERE = """#!/bin/sh
export RUNNER_STATE_DIR={state} RUNNER_SETTINGS={settings} XDG_CACHE_HOME={cache} PYTHONPATH={root}
unset RUNNER_HOST
exec {python} -m runner.cli.entry "$@"
"""

PROGRAM = """
import pathlib, sys, time
import helper
print(helper.WORDS, sys.argv[1:], flush=True)
pathlib.Path("out").mkdir()
pathlib.Path("out/result.txt").write_text("made there")
"""


STAYS = """
import pathlib, time
import helper
pathlib.Path("out").mkdir()
pathlib.Path("out/result.txt").write_text("made there")
print(helper.WORDS, flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.1)
print("after the cut", flush=True)
"""


CALLS = """
import gpu_job_runner as runner

def call(number):
    import helper
    return number + 1, helper.WORDS

print(runner.run(call, 41, cpus=0.5, memory="256MiB").result())
"""


@dataclass
class Laptop:
    """A machine that has the daemon's machine only by ssh."""

    place: Path
    port: int
    there: Path
    forwards: bool

    @property
    def url(self) -> str:
        return f"ssh://{Path('~').expanduser().owner()}@127.0.0.1:{self.port}?command={self.there}"

    @property
    def environ(self) -> dict[str, str]:
        known = {key: value for key, value in os.environ.items() if not key.startswith(("RUNNER_", "XDG_"))}
        own = {"XDG_RUNTIME_DIR": str(self.place / "run"), "XDG_CONFIG_HOME": str(self.place / "config")}
        return {**known, **own, "PATH": f"{self.place}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def type(self, *arguments: str, cwd: Path | None = None, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "runner.cli.entry", *arguments],
            env=self.environ,
            cwd=cwd or self.place,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=patience(),
        )
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def run(self, *arguments: str, cwd: Path | None = None, code: int = 0) -> str:
        return self.type("--host", self.url, *arguments, cwd=cwd, code=code)

    def masters(self) -> list[int]:
        """Return the processes of ssh that keep a connection."""
        return self._processes(f"^ssh: {self.place}.*mux")

    def relays(self) -> list[int]:
        """Return the processes that dial for each connection."""
        return self._processes(f"runner.client.relay {self.place}")

    def _processes(self, pattern: str) -> list[int]:
        found = subprocess.run(["pgrep", "-f", pattern], stdout=subprocess.PIPE, text=True, check=False)
        return [int(each) for each in found.stdout.split()]


@pytest.fixture(scope="module")
def sshd() -> str:
    """Return the path of sshd; without one, a laptop skips and CI fails."""
    found = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("there is no sshd; scripts/test-tools provides it")
        pytest.skip("there is no sshd; scripts/test-tools provides it")
    return found


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process") as made:
        yield made.start()


BOTH_WAYS = pytest.mark.parametrize(
    "laptop", ["yes", "no"], ids=["forwarded", "dialled"], indirect=True, scope="module"
)
"""Of what depends on the connection: sshd forwards sockets, or each connection is dialled by a command."""


@pytest.fixture(scope="module")
def laptop(request: pytest.FixtureRequest, sshd: str, daemon: Service) -> Iterator[Laptop]:
    forwards = getattr(request, "param", "yes")
    place, port = Path(tempfile.mkdtemp(prefix="runner-laptop-")), free_port()
    place.chmod(0o755)  # sshd reads the keys of a user with the user's rights
    for name in ("bin", "run", "authorized", "cache"):
        (place / name).mkdir(mode=0o755 if name != "run" else 0o700)
    for key in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / key)], check=True)
    shutil.copy(place / "key.pub", place / "authorized" / Path("~").expanduser().owner())
    (place / "sshd.conf").write_text(CONFIG.format(port=port, place=place, forwards=forwards))
    script(place / "bin/ssh", SSH.format(ssh=shutil.which("ssh"), place=place))
    there = place / "there"
    script(
        there,
        THERE.format(
            state=daemon.state,
            settings=daemon.settings_file,
            cache=place / "cache",
            root=ROOT,
            python=sys.executable,
        ),
    )
    command = [sshd, "-D", "-f", str(place / "sshd.conf")]
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True, mode=0o755)
        command = with_a_login_for_man(place, command)
    with subprocess.Popen(command) as process:
        until(lambda: _listens(port), "sshd listens")
        laptop = Laptop(place, port, there, forwards == "yes")
        yield laptop
        process.terminate()
    for pid in (*laptop.relays(), *laptop.masters()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    shutil.rmtree(place)


def with_a_login_for_man(place: Path, command: list[str]) -> list[str]:
    """Return a command that sees an account of man with a shell, and Python where others may reach it.

    Debian's account of man has no shell, and a Python below root's home is for root alone.
    """
    lines = Path("/etc/passwd").read_text().splitlines()
    own = [f"{line.rpartition(':')[0]}:/bin/sh" if line.startswith("man:") else line for line in lines]
    (place / "passwd").write_text("\n".join(own) + "\n")
    (place / "passwd").chmod(0o644)
    binds = [f"mount --bind {place}/passwd /etc/passwd"]
    needed = {Path(os.path.realpath(sys.executable)), Path(sys.prefix), ROOT}
    closed = {
        found: [each for each in needed if closed_above(each) == found] for found in map(closed_above, needed)
    }
    for directory, paths in closed.items():
        if directory is None:
            continue
        stand_in = place / "open" / directory.relative_to("/")
        for child in {directory / path.relative_to(directory).parts[0] for path in paths}:
            (stand_in / child.name).mkdir(parents=True)
            binds.append(f"mount --bind {child} {stand_in / child.name}")
        binds.append(f"mount --rbind {stand_in} {directory}")
    return ["unshare", "--mount", "sh", "-c", f'{" && ".join(binds)} && exec "$@"', "sh", *command]


def closed_above(path: Path) -> Path | None:
    """Return the first directory above a path that others may not pass through."""
    return next((each for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None)


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with code that imports other code, an ignored file and a file of its own policy."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("WORDS = 'from the laptop'\n")
    (tmp_path / ".gitignore").write_text("big.bin\n")
    (tmp_path / "big.bin").write_bytes(b"x" * 1000)
    (tmp_path / "mine.yaml").write_text("policy: 1\nname: mine\nextends: default\n")
    (tmp_path / "job.yaml").write_text(
        "name: far\nworkload: {kind: program, command: [/usr/bin/python3, train.py, a], code: .}\n"
        "resources: {cpus: 0.5, memory: 256MiB}\npolicy: ./mine.yaml\n"
    )
    return tmp_path


@BOTH_WAYS
def test_a_job_of_the_laptop_runs_on_the_server(laptop: Laptop, daemon: Service, project: Path) -> None:
    said = laptop.run("submit", "job.yaml", "--follow", cwd=project)
    assert "from the laptop ['a']" in said
    [job] = [each for each in daemon.client.jobs(everything=True)[:1] if each["name"] == "far"]
    assert daemon.job(job["id"])["outcome"] == "succeeded"
    held = list((laptop.place / "cache/runner/received/trees").glob("*/**/*"))
    assert {path.name for path in held if path.is_file()} == {
        "train.py",
        "helper.py",
        ".gitignore",
        "job.yaml",
        "mine.yaml",
    }
    laptop.run("cp", f"{job['id']}:out/result.txt", "result.txt", cwd=project)
    assert (project / "result.txt").read_text() == "made there"


def test_git_of_the_laptop_is_recorded_and_what_it_tracks_is_sent(
    laptop: Laptop, daemon: Service, project: Path
) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=ada", "-c", "user.email=ada@lab.example")
        return subprocess.check_output(["git", *who, *words], cwd=project, text=True).strip()

    git("init", "-q", "-b", "trial")
    git("add", ".")
    git("add", "--force", "big.bin")  # which .gitignore names
    git("commit", "-q", "-m", "first")
    (project / "train.py").write_text("import pathlib\nprint(pathlib.Path('big.bin').stat().st_size)\n")
    said = laptop.run("submit", "job.yaml", "--follow", cwd=project)
    assert "1000" in said
    job = str(max(int(each["id"]) for each in daemon.client.jobs(everything=True)))
    code = (daemon.client.job(job)["revision"] or {})["code"]
    told = {name: code[name] for name in ("commit", "branch", "remote", "dirty")}
    assert told == {"commit": git("rev-parse", "HEAD"), "branch": "trial", "remote": None, "dirty": True}
    assert f"commit {told['commit'][:12]} on trial, with changes" in laptop.run("show", job)


def test_requirements_outside_of_the_code_are_sent(laptop: Laptop, project: Path) -> None:
    (project / "lists").mkdir()
    (project / "src").mkdir()
    (project / "src/train.py").write_text(PROGRAM)
    (project / "lists/mine.txt").write_text("-r more.txt\n")
    (project / "lists/more.txt").write_text("# none of these is built\n-e .\n")
    text = (project / "job.yaml").read_text().replace("code: .", "code: src")
    (project / "wanting.yaml").write_text(f"{text}image: {{requirements: lists/mine.txt}}\n")
    said = laptop.run("submit", "wanting.yaml", cwd=project, code=2)
    assert "lists/more.txt:2: -e .: lists: has no pyproject.toml" in said


def test_what_the_server_has_does_not_travel_again(laptop: Laptop, project: Path) -> None:
    laptop.run("submit", "job.yaml", "--dry-run", cwd=project)
    kept = laptop.place / "cache/runner/received/files"
    before = {path: path.stat().st_mtime_ns for path in kept.iterdir()}
    (project / "helper.py").write_text("WORDS = 'changed'\n")
    laptop.run("submit", "job.yaml", "--dry-run", cwd=project)
    after = {path: path.stat().st_mtime_ns for path in kept.iterdir()}
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()


def test_a_line_runs_there_and_its_exit_code_comes_back(laptop: Laptop, project: Path) -> None:
    assert "from the laptop" in laptop.run("run", "--", "/usr/bin/python3", "train.py", cwd=project)
    laptop.run("run", "--", "/bin/sh", "-c", "exit 3", cwd=project, code=10)


def test_python_of_the_laptop_calls_a_function_there(laptop: Laptop, project: Path) -> None:
    (project / "call.py").write_text(CALLS)
    done = subprocess.run(
        [sys.executable, "call.py"],
        env={**laptop.environ, "RUNNER_HOST": laptop.url},
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(),
    )
    assert done.stdout.splitlines()[-1:] == ["(42, 'from the laptop')"], done.stdout + done.stderr


@BOTH_WAYS
def test_one_connection_serves_many_commands(laptop: Laptop) -> None:
    laptop.run("list")
    before = laptop.masters()
    for _ in range(3):
        laptop.run("list")
    assert before
    assert laptop.masters() == before


@BOTH_WAYS
def test_a_connection_that_was_cut_is_made_again(laptop: Laptop) -> None:
    laptop.run("list")
    before = laptop.masters()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    laptop.run("list")
    assert laptop.masters()
    assert not set(laptop.masters()) & set(before)


@BOTH_WAYS
def test_exec_and_logs_reach_into_a_running_job(laptop: Laptop, daemon: Service) -> None:
    file = daemon.file(
        "sleeper", workload={"kind": "program", "command": ["/bin/sh", "-c", "echo ready; exec sleep 1000"]}
    )
    job = daemon.submit(file, end="cancelled")
    daemon.runs(job, "ready")
    assert laptop.run("exec", job, "--", "/bin/sh", "-c", "echo inside; exit 7", code=7) == "inside\n"
    assert "ready" in laptop.run("logs", job)
    laptop.run("cancel", job)
    daemon.ends(job)


def test_named_hosts_stand_for_addresses(laptop: Laptop) -> None:
    laptop.type("host", "add", "gpu1", laptop.url)
    assert json.loads(laptop.type("--host", "gpu1", "version", "--json"))["daemon"]["api"] == 1
    laptop.type("host", "use", "gpu1")
    assert "gpu1" in laptop.type("host", "list")
    laptop.type("list")
    laptop.type("host", "remove", "gpu1")
    assert laptop.type("host", "list") == ""


@pytest.mark.parametrize(
    ("url", "words", "code"),
    [
        ("ssh://nobody@127.0.0.1:1", "ssh cannot connect; try: ssh -p 1 nobody@127.0.0.1 true", 4),
        ("ftp://server", "give ssh://USER@SERVER[:PORT]", 2),
        ("ssh://-oProxyCommand=touch", "is not a name of a server", 2),
        ("ssh://host:notaport", "give ssh://USER@SERVER[:PORT]", 2),
        ("gpu9", "gpu9: is not a known host; give ssh://USER@SERVER, or runner host add gpu9 URL", 2),
    ],
)
def test_a_host_that_cannot_be_reached_is_told_in_a_line(
    laptop: Laptop, url: str, words: str, code: int
) -> None:
    said = laptop.type("--host", url, "list", code=code)
    assert words in said
    assert "Traceback" not in said


def test_a_server_without_the_runner_is_told(laptop: Laptop) -> None:
    url = laptop.url.partition("?")[0]
    said = laptop.type("--host", f"{url}?command=/no/such/runner", "list", code=4)
    assert "has no program /no/such/runner; install the runner there, or name it" in said


def test_code_that_is_not_there_and_code_that_is_too_large_are_refused(laptop: Laptop, project: Path) -> None:
    text = (project / "job.yaml").read_text()
    (project / "bad.yaml").write_text(text.replace("code: .", "code: src"))
    assert "workload.code: src: there is no such directory" in laptop.run(
        "submit", "bad.yaml", cwd=project, code=2
    )
    with (project / "huge").open("wb") as file:
        file.truncate(201 * 1024**2)
    said = laptop.run("submit", "job.yaml", cwd=project, code=2)
    assert "list in .runnerignore what is not needed; the largest:" in said
    assert "huge (201 MiB)" in said


@BOTH_WAYS
def test_version_and_stop_start_no_daemon_there_and_a_follower_says_that_it_is_gone(
    laptop: Laptop, daemon: Service
) -> None:
    words = ["/bin/sh", "-c", "echo here; exec sleep 1000"]
    file = daemon.file("long", workload={"kind": "program", "command": words})
    job = daemon.submit(file, end="cancelled")
    command = [sys.executable, "-m", "runner.cli.entry", "--host", laptop.url, "logs", "-f", job]
    with subprocess.Popen(
        command, env=laptop.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as logs:
        assert logs.stdout is not None
        assert logs.stderr is not None
        assert logs.stdout.readline() == "here\n"
        laptop.run("stop")
        for command_there in ("version", "stop"):
            assert "no daemon runs" in laptop.run(command_there)
        assert "its daemon does not answer; jobs go on, and this command waits" in logs.stderr.readline()
        with suppress(AssertionError):
            daemon.start()
        laptop.run("cancel", job)
        assert logs.wait(patience()) == 0
    daemon.ends(job)


@BOTH_WAYS
def test_a_connection_that_drops_in_a_submission_leaves_one_job_or_none(
    laptop: Laptop, daemon: Service, project: Path
) -> None:
    with (project / "weights").open("wb") as file:
        file.write(os.urandom(64 * 1024**2))
    before = len(daemon.client.jobs(everything=True))
    command = [sys.executable, "-m", "runner.cli.entry", "--host", laptop.url, "submit", "job.yaml"]
    laptop.run("list")
    with subprocess.Popen(
        command, env=laptop.environ, cwd=project, stderr=subprocess.PIPE, text=True
    ) as submission:
        files = laptop.place / "cache/runner/received/files"
        deadline = time.monotonic() + patience()
        while submission.poll() is None and not list(files.glob(".draft-*")) and time.monotonic() < deadline:
            pass
        for pid in laptop.masters():
            os.kill(pid, signal.SIGKILL)
        _, said = submission.communicate(timeout=patience())
    made = len(daemon.client.jobs(everything=True)) - before
    assert made == (1 if submission.returncode == 0 else 0), said
    if submission.returncode:
        assert said.strip().endswith("nothing was submitted") or "connection ended early" in said


@BOTH_WAYS
def test_a_laptop_shares_no_directory_with_the_server_and_its_connection_is_cut(
    laptop: Laptop, daemon: Service, project: Path
) -> None:
    """The laptop is another mount namespace, whose working directory is a disk of its own."""
    import pexpect

    (project / "train.py").write_text(STAYS)
    (project / "job.yaml").write_text(
        "name: apart\nworkload: {kind: program, command: [/usr/bin/python3, train.py], code: .}\n"
        "resources: {cpus: 0.5, memory: 256MiB}\n"
    )
    place = laptop.place / "disk"
    place.mkdir(exist_ok=True)
    root = [] if os.geteuid() == 0 else ["--map-current-user"]
    mount = f'mount -t tmpfs none {place} && cp -r {project}/. {place} && cd {place} && exec "$@"'
    runner = [sys.executable, "-m", "runner.cli.entry", "--host", laptop.url]

    def apart(*words: str) -> list[str]:
        return ["unshare", "--mount", *root, "sh", "-c", mount, "sh", *words]

    def typed(*words: str) -> str:
        return subprocess.check_output(apart(*words), env=laptop.environ, text=True, timeout=patience())

    typed(*runner, "submit", "job.yaml")
    assert (
        list(place.iterdir()) == []
    )  # the daemon's machine has a directory of that name, and none of its files
    job = str(max(int(each["id"]) for each in daemon.client.jobs(everything=True)))
    with subprocess.Popen(
        apart(*runner, "logs", "-f", job), env=laptop.environ, stdout=subprocess.PIPE
    ) as logs:
        assert logs.stdout is not None
        assert logs.stdout.readline() == b"from the laptop\n"
        for pid in laptop.masters():
            os.kill(pid, signal.SIGKILL)
        copy = f"{shlex.join(runner)} cp {job}:out/ ./got && cat got/result.txt"
        copied = typed("sh", "-c", copy)
        assert copied.endswith("made there")
        words = [*apart(*runner, "exec", "-it", job, "--", "/bin/sh")]
        shell = pexpect.spawn(words[0], words[1:], env=laptop.environ, encoding="utf-8", timeout=patience())
        shell.sendline("echo $((40 + 2)) there")
        shell.expect("42 there")
        shell.sendline("exit 7")
        shell.expect(pexpect.EOF)
        shell.close()
        assert shell.exitstatus == 7
        words = apart(*runner, "shell", "-c", "0.1", "-m", "64M")
        shell = pexpect.spawn(words[0], words[1:], env=laptop.environ, encoding="utf-8", timeout=patience())
        shell.sendline("cat helper.py; kept=$((50 + 2)); echo $((kept + 1)) there")
        shell.expect("WORDS = 'from the laptop'")
        shell.expect("53 there")
        for pid in laptop.masters():
            os.kill(pid, signal.SIGKILL)
        shell.expect("the program goes on; waiting for the daemon")
        laptop.run("list")  # any command makes the connection again
        shell.sendline("echo still $kept; exit 3")
        shell.expect("still 52")
        shell.expect(pexpect.EOF)
        shell.close()
        assert shell.exitstatus == 3
        assert daemon.client.job(job)["state"] == "running"
        go = apart(*runner, "exec", job, "--", "touch", "go")
        subprocess.run(go, check=False, env=laptop.environ, timeout=patience())  # the job may end it first
        assert logs.stdout.readline() == b"after the cut\n"  # the follower has connected again by itself
        assert logs.wait(patience()) == 0
    assert daemon.client.job(job)["outcome"] == "succeeded"
    assert list(place.iterdir()) == []


def test_the_kernel_tells_the_daemon_who_came_by_ssh(laptop: Laptop, daemon: Service, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        return  # only root's sshd lets other users in
    file = daemon.file("of-root", workload={"kind": "program", "command": ["/bin/sleep", "1000"]})
    job = daemon.submit(file, end="cancelled")
    shutil.copy(laptop.place / "key.pub", laptop.place / "authorized/man")
    local = tmp_path / "as-man.sock"
    line = [str(laptop.place / "bin/ssh"), "-N", "-p", str(laptop.port), "-o", "ExitOnForwardFailure=yes"]
    with subprocess.Popen(
        [*line, "-L", f"{local}:{daemon.socket}", "man@127.0.0.1"], env=laptop.environ
    ) as ssh:
        try:
            until(local.exists, "the socket is forwarded")
            with pytest.raises(ErrorResponse) as refused:
                Client(Endpoint(str(local), None)).act(job, "cancel", {})
        finally:
            ssh.kill()  # it can miss a SIGTERM that comes just before it waits for traffic
    assert refused.value.code == Refused.exit_code
    laptop.run("cancel", job)
    daemon.ends(job)


@BOTH_WAYS
def test_two_users_come_by_ssh_each_as_the_one_that_sshd_says(
    laptop: Laptop, daemon: Service, project: Path
) -> None:
    """Root and another user, each from a mount namespace with a disk of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root's sshd lets other users in")
    shutil.copy(laptop.place / "key.pub", laptop.place / "authorized/man")
    cache = laptop.place / "cache-of-man"
    cache.mkdir(exist_ok=True)
    shutil.chown(cache, "man")
    there = laptop.place / "there-as-man"
    known = {"RUNNER_SOCKET": daemon.socket, "XDG_CACHE_HOME": cache, "PYTHONPATH": ROOT}
    words = " ".join(f"{name}={value}" for name, value in known.items())
    script(there, f'#!/bin/sh\nexec env {words} {sys.executable} -m runner.cli.entry "$@"\n')
    (project / "train.py").write_text(STAYS)
    (project / "job.yaml").write_text(
        "name: shared\nworkload: {kind: program, command: [/usr/bin/python3, train.py], code: .}\n"
        "resources: {cpus: 0.1, memory: 64MiB}\n"
    )
    place = laptop.place / "disks"
    place.mkdir(exist_ok=True)
    mount = f'mount -t tmpfs none {place} && cp -r {project}/. {place} && cd {place} && exec "$@"'
    urls = {"root": laptop.url, "man": f"ssh://man@127.0.0.1:{laptop.port}?command={there}"}

    def typed(who: str, *words: str, code: int = 0) -> str:
        runner = [sys.executable, "-m", "runner.cli.entry", "--host", urls[who], *words]
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", mount, "sh", *runner],
            env=laptop.environ, capture_output=True, text=True, timeout=patience(), check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    jobs = {}
    for who in urls:
        typed(who, "submit", "job.yaml")
        jobs[who] = str(max(int(each["id"]) for each in daemon.client.jobs(everything=True)))
        assert daemon.client.job(jobs[who])["owner"] == who
        daemon.runs(jobs[who], "from the laptop")
    assert "only they and root may do that" in typed("man", "cancel", jobs["root"], code=Refused.exit_code)
    assert "only they and root may do that" in typed("man", "logs", jobs["root"], code=Refused.exit_code)
    assert "made there" in typed("man", "exec", jobs["man"], "--", "cat", "out/result.txt")
    typed("man", "cancel", jobs["man"])
    typed("root", "cancel", jobs["root"])
    for job in jobs.values():
        until(lambda job=job: daemon.state_of(job) == "finished", "it is cancelled")  # type: ignore[misc]
    assert list(place.iterdir()) == []
