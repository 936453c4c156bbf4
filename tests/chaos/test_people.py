"""Several people and one daemon of root: who may do what, and as whom it runs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.client.client import Client
from tests.fakes.daemon.service import Json, Service, service, until
from tests.fakes.host.users import with_uid

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else"),
]
ANN, BOB = 1234, 4321


@pytest.fixture(scope="module")
def daemon(counter: str) -> Iterator[Service]:
    with service(executor="docker", allowed_images={"counter": counter}) as made:
        yield made.start()
        made.assert_whole()


@pytest.fixture
def private(daemon: Service) -> Path:
    """A directory and a file that only root can read."""
    directory = daemon.root / "private"
    if not directory.exists():
        directory.mkdir(mode=0o700)
        (directory / "notes.txt").write_text("root's own\n")
        (daemon.root / "password").write_text("hush\n")
        (daemon.root / "password").chmod(0o600)
    return directory


def submit_as(daemon: Service, uid: int, file: Path, end: str = "succeeded") -> str:
    """Submit a job file as somebody, and return the job's id."""
    text = file.read_bytes()
    code, answer = with_uid(uid, lambda: daemon.client.submit(str(file), text, None))
    assert code == 0, answer
    assert isinstance(answer, dict)
    job_id = str(answer["job"]["id"])
    daemon.jobs[job_id] = end
    return job_id


def refusal(daemon: Service, uid: int, file: Path) -> tuple[int, object]:
    text = file.read_bytes()
    return with_uid(uid, lambda: daemon.client.submit(str(file), text, None))


def test_a_container_runs_as_whoever_submitted_it_and_roots_as_nobody(daemon: Service) -> None:
    ids = {
        uid: submit_as(daemon, uid, daemon.counting(f"of-{uid}", 100_000), "cancelled") for uid in (ANN, 0)
    }
    for uid, expected in ((ANN, "1234:1234"), (0, "65532:65532")):
        job_id = ids[uid]
        daemon.runs(job_id, "step 1")
        [container] = daemon.containers(job_id)
        assert container["Config"]["User"] == expected
        status = Path(f"/proc/{daemon.program_pid(job_id)}/status").read_text()
        real = expected.partition(":")[0]
        assert f"Uid:\t{real}\t{real}\t{real}\t{real}" in status
        assert f"Gid:\t{real}\t{real}\t{real}\t{real}" in status
        assert f"Groups:\t{real} \n" in status
        assert "CapEff:\t0000000000000000" in status
        assert daemon.paths(job_id).log.stat().st_uid == int(real)
    for job_id in ids.values():
        daemon.runner("cancel", job_id)


def test_nobody_commands_or_reads_the_job_of_another(daemon: Service) -> None:
    mine = daemon.submit(daemon.counting("roots", 100_000), end="cancelled")
    anns = submit_as(daemon, ANN, daemon.counting("anns", 100_000), "cancelled")
    daemon.runs(mine, "step 1")
    asks = [
        lambda client, job: client.act(job, "cancel", {}),
        lambda client, job: client.act(job, "restart", {"from": "scratch"}),
        lambda client, job: client.act(job, "signal", {"signal": "KILL"}),
        lambda client, job: client.log(job),
    ]
    for uid, job_id in ((ANN, mine), (BOB, anns)):
        for ask in asks:
            code, said = with_uid(uid, lambda ask=ask, job_id=job_id: ask(daemon.client, job_id))  # type: ignore[misc]
            assert (code, "only they and root may do that" in str(said)) == (3, True), said
    assert with_uid(ANN, lambda: _states(daemon.client))[0] == 0  # looking is free
    assert with_uid(ANN, daemon.client.stop)[0] == 3
    assert with_uid(ANN, lambda: daemon.client.act(anns, "cancel", {})["changed"]) == (0, True)
    daemon.runner("cancel", mine)
    assert daemon.ends(anns)["why"].startswith("cancelled by ")


def _states(client: Client) -> Json:
    return {job["id"]: job["state"] for job in client.jobs()}


def test_what_somebody_cannot_read_is_neither_data_nor_mount_nor_secret(
    daemon: Service, private: Path
) -> None:
    workload = {"kind": "causal_lm", "data": str(private), "steps": 1}
    wishes: dict[str, Json] = {
        "workload.data": {"workload": workload},
        "mounts[0].source": {"mounts": [{"source": str(private), "target": "/data/x"}]},
        "secrets.key": {"secrets": {"key": str(daemon.root / "password")}},
    }
    for field, wish in wishes.items():
        file = daemon.counting("curious", 1, **wish)
        code, said = refusal(daemon, ANN, file)
        assert code == 2, said
        assert field in str(said)
        assert str(daemon.root) in str(said)
    assert "curious" not in daemon.runner("list", "--all")


def test_a_link_that_is_turned_after_the_check_leads_nowhere(daemon: Service, private: Path) -> None:
    public, link = daemon.root / "public", daemon.root / "link"
    public.mkdir()
    link.symlink_to(public)
    os.chown(link, ANN, ANN, follow_symlinks=False)
    everything = {"cpus": 1, "memory": "64GiB"}
    before = submit_as(daemon, 0, daemon.counting("blocks", 100_000, resources=everything), "cancelled")
    daemon.prints(before, "step 1")
    wish: Json = {"mounts": [{"source": str(link), "target": "/data/x"}], "retry": {"max_attempts": 1}}
    job_id = submit_as(daemon, ANN, daemon.counting("turns", 3, **wish), "failed")
    until(lambda: daemon.job(job_id)["why"].startswith("waits for"), "it waits for memory")
    link.unlink()
    link.symlink_to(private)
    daemon.runner("cancel", before)
    ended = daemon.ends(job_id)
    assert ended["attempts"][0]["cause"] == "launch_failed"
    assert str(link) in ended["why"]
    assert daemon.log(job_id) == ""


def test_a_source_that_is_gone_when_its_turn_comes_fails_the_job_with_a_reason(daemon: Service) -> None:
    directory = daemon.root / "soon gone"
    directory.mkdir()
    everything = {"cpus": 1, "memory": "64GiB"}
    before = daemon.submit(daemon.counting("blocks-too", 100_000, resources=everything), end="cancelled")
    daemon.prints(before, "step 1")
    wish: Json = {"mounts": [{"source": str(directory), "target": "/data/x"}], "retry": {"max_attempts": 1}}
    job_id = daemon.submit(daemon.counting("late", 3, **wish), end="failed")
    directory.rmdir()
    daemon.runner("cancel", before)
    assert "soon gone" in daemon.ends(job_id)["why"]
    assert "soon gone" in daemon.runner("wait", job_id, code=10)
