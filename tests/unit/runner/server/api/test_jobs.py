"""The HTTP side over a real daemon and store, with an executor and images that are fakes."""

import asyncio
import base64
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from jobs.contract import Cause, FileDigest, Manifest, Phase, Result, Status, dump
from runner.adapters.host.clock import SystemClock
from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.store import SqliteStore
from runner.agent.attempts.service import AttemptService
from runner.base.broadcast import ChangeBroadcast
from runner.base.errors import Unavailable
from runner.base.fair_executor import FairExecutor
from runner.base.keyed_executor import KeyedExecutor
from runner.control.context import Capacity
from runner.control.context import Context as Parts
from runner.control.controller import Controller
from runner.core.ports.devices import Device
from runner.core.ports.executor import LaunchRequest
from runner.core.ports.store import DecisionRow
from runner.files.settings.model import Settings
from runner.server.api import jobs as jobs_api
from runner.server.api.application import MAX_BODY_BYTES, application
from runner.server.api.peer import Peer, peer_of
from tests.fakes.daemon.services import attempt_config, job_service
from tests.fakes.engine.executor import FakeExecutor, Program, World
from tests.fakes.engine.images import FakeImages
from tests.fakes.engine.packages import FakePackages
from tests.fakes.gpu.vitals import FakeInventory
from tests.fakes.patience import patience

REFERENCE = "nvcr.io/nvidia/pytorch:25.08-py3"
JOB = "workload: {kind: causal_lm, data: stdlib}\nretry: {backoff: 0s}\n"
ME = os.getuid()


@dataclass
class Site:
    """A service, and somebody to talk to it."""

    directory: Path
    context: World = field(default_factory=World)
    left: list[str] = field(default_factory=list)
    devices: tuple[Device, ...] = (Device("GPU-a", "nvidia", "H100"),)
    fake_inventory: FakeInventory = field(default_factory=FakeInventory)
    packages: FakePackages = field(default_factory=FakePackages)

    def __post_init__(self) -> None:
        self.store = store = SqliteStore(self.directory / "store.db")
        clock, broadcast = SystemClock(), ChangeBroadcast()
        self.images = images = FakeImages()
        images.offered |= dict.fromkeys(("site/ours:1", "lab/own:1", REFERENCE), "sha256:ours")
        packages = self.packages
        config = attempt_config(self.directory / "jobs", images, clock, store.instance, packages)
        attempt_service = AttemptService(config)
        self.fake_inventory.devices = list(self.devices)
        parts = Parts(
            store=store,
            executor=FakeExecutor(store.instance, self.context),
            attempt_service=attempt_service,
            clock=clock,
            capacity=Capacity(4.0, 16 * 1024**3, self.devices),
            work_queue=KeyedExecutor(2),
            build_queue=KeyedExecutor(2),
            verification_queue=FairExecutor("verification"),
            observe_every_s=0.05,
            past=SqliteAccounting(store),
            inventory=self.fake_inventory,
        )
        daemon = Controller(parts, changed=broadcast.announce)
        settings = Settings(allowed_images={"ours": "site/ours:1"})
        self.service = job_service(
            daemon, store, attempt_service, settings, clock, broadcast, self.directory, packages, images
        )
        self.app = application(self.service, lambda: self.left.append("left"))
        daemon.start()

    def ask(self, method: str, path: str, body: object = None, uid: int = ME) -> httpx.Response:
        async def exchange() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=(f"{uid}:{uid}", 4711))
            async with httpx.AsyncClient(transport=transport, base_url="http://runner") as client:
                return await client.request(method, f"/v1{path}", json=body, timeout=patience())

        return asyncio.run(exchange())

    def submit(self, text: str = JOB, uid: int = ME, **more: object) -> httpx.Response:
        encoded = base64.b64encode(text.encode()).decode()
        return self.ask(
            "POST", "/jobs", {"path": str(self.directory / "job.yaml"), "text_b64": encoded, **more}, uid
        )

    def job(self, reference: str = "1") -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"/jobs/{reference}").json()
        return found

    def until(self, state: str, reference: str = "1", attempt: int | None = None) -> dict[str, Any]:
        """Return a job once it is in a state, with that attempt if one is named."""

        def look() -> dict[str, Any] | None:
            found = self.job(reference)
            return found if found["state"] == state and attempt in {None, found["attempt"]} else None

        found = wait_until(look)
        self.service.daemon.exclusive.read(lambda: None)  # the loop knows it, too, and not the store alone
        return found

    def attempt_dir(self, job_id: str = "1", attempt: int = 1) -> Path:
        return self.directory / "jobs" / job_id / "attempts" / str(attempt)

    def end(self, exit_code: int, job_id: str = "1") -> None:
        [key] = [key for key in self.context.running if key.job_id == job_id]
        self.context.end(key, exit_code)

    def complete(self, job_id: str = "1") -> None:
        result = Result(cause=Cause.COMPLETED, step=9, weights_sha256="a" * 64)
        (self.attempt_dir(job_id) / "result.json").write_text(dump(result))
        self.end(0, job_id)


T = TypeVar("T")


def wait_until(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + patience()
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
    raise TimeoutError


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.service.daemon.stop()


def error(response: httpx.Response) -> tuple[int, str, str]:
    said = response.json()["error"]
    return response.status_code, said["kind"], said["message"]


def test_a_job_is_accepted_runs_and_succeeds(site: Site) -> None:
    accepted = site.submit()
    assert accepted.status_code == 201
    assert accepted.json()["job"]["name"] == "job"
    site.until("running")
    site.complete()
    found = site.until("finished")
    assert found["image"] == "sha256:cpu"
    assert (found["outcome"], found["why"]) == ("succeeded", "completed")
    assert found["result"]["weights_sha256"] == "a" * 64
    assert [a["cause"] for a in found["attempts"]] == ["completed"]
    assert found["revision"]["job"]["workload"]["data"] == "stdlib"


def test_nobody_is_told_of_requests(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for kind, name in (("trace", "tracer"), ("metrics", "meter"), ("_logs", "logger")):
        monkeypatch.setattr(f"opentelemetry.{kind}.get_{name}_provider", lambda name=name: asked.append(name))
    assert site.ask("GET", "/version").status_code == 200
    assert asked == []


def test_all_errors_of_a_job_file_come_back_with_their_places(site: Site) -> None:
    response = site.submit("workload: {kind: causal_lm, data: stdlib, stepz: 3}\nnam: x\n", shown="job.yaml")
    assert response.status_code == 422
    assert [line.split(": ")[0] for line in response.json()["error"]["lines"]] == [
        "job.yaml:1:43",
        "job.yaml:2:1",
    ]
    assert site.ask("GET", "/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("resources: {cpus: 99}", "job.yaml:3:19: resources.cpus: asks for 99; there are 4"),
        ("resources: {memory: 1TiB}", "resources.memory: asks for 1 TiB; there are 16 GiB"),
        ("resources: {gpus: 2}", "resources.gpus: causal_lm computes on one GPU, and the others would idle"),
        ("resources: {gpus: 1}\naccelerator: rocm", "resources.gpus: asks for 1; there are 0"),
        ("image: theirs", '"theirs" is not offered here'),
    ],
)
def test_what_can_never_be_had_is_refused_at_once(site: Site, more: str, words: str) -> None:
    status, kind, message = error(site.submit(JOB + more, shown="job.yaml"))
    assert (status, kind) == (422, "usage")
    assert words in message


def test_the_accelerator_follows_from_what_there_is(site: Site) -> None:
    for text in (JOB, JOB + "resources: {gpus: 1}"):
        site.submit(text)
    assert [site.job(i)["revision"]["accelerator"] for i in "12"] == ["cpu", "cuda"]
    assert site.until("running", "2")["gpus"] == ["GPU-a"]


def test_an_image_that_the_site_offers_is_taken_by_its_reference(site: Site) -> None:
    site.submit(JOB + "image: ours")
    assert site.until("running")["image"] == "sha256:ours"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"path": "job.yaml", "text_b64": ""}, "path: must be absolute"),
        ({"path": "/job.yaml", "text_b64": "%%"}, "text_b64: is not base64"),
        (
            {"path": "/job.yaml", "text_b64": "", "privileged": True},
            "body.privileged: extra inputs",
        ),
        (
            {"path": "/job.yaml", "text_b64": base64.b64encode(JOB.encode()).decode(), "name": "a b"},
            "--name: ",
        ),
    ],
)
def test_a_wrong_request_is_refused(site: Site, body: dict[str, object], words: str) -> None:
    status, _, message = error(site.ask("POST", "/jobs", body))
    assert status == 422
    assert words.lower() in message.lower()


def test_a_body_without_end_is_not_read_to_its_end(site: Site) -> None:
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield bytes(64 * 1024)

    async def exchange() -> httpx.Response:
        transport = httpx.ASGITransport(site.app, client=(f"{ME}:{ME}", 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://runner") as client:
            return await client.post(
                "/v1/jobs", content=pieces(), headers={"content-type": "application/json"}
            )

    assert asyncio.run(exchange()).status_code == 413
    assert sent * 64 * 1024 < 2 * MAX_BODY_BYTES


def test_the_same_submission_sent_twice_makes_one_job(site: Site) -> None:
    answers = [site.submit(token="a" * 32).json()["job"]["id"] for _ in range(2)]
    assert answers == ["1", "1"]
    assert site.submit(token="b" * 32).json()["job"]["id"] == "2"


def test_a_dry_run_tells_everything_and_does_nothing(site: Site) -> None:
    said = site.submit(dry_run=True, name="other").json()
    assert said["job"]["job"]["name"] == "other"
    assert said["spec"]["workload"]["steps"] == 200
    assert said["engine"]["argv"][:4] == ["python", "-P", "-m", "jobs"]
    assert site.ask("GET", "/jobs").json()["jobs"] == []
    assert not (site.directory / "jobs").exists()


def test_a_dry_run_shows_the_devices_that_the_job_would_get_now(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = JOB + "resources: {gpus: 1}"
    said = site.submit(text, dry_run=True).json()
    assert "devices" not in site.submit(dry_run=True).json()
    assert said["devices"]["note"] == "those that the job would get now; the start decides"
    assert [each["uuid"] for each in said["devices"]["devices"]] == ["GPU-a"]
    assert (said["devices"]["waits_for"], said["devices"]["problem"]) == (None, None)
    assert said["engine"]["devices"] == ["GPU-a"]
    site.submit(text)
    site.until("running")
    waits = site.submit(text, dry_run=True).json()["devices"]
    assert waits["note"].startswith("those of an idle machine, as an example")
    assert [each["uuid"] for each in waits["devices"]] == ["GPU-a"]
    assert "waits for 1 NVIDIA GPU" in waits["waits_for"]
    monkeypatch.setattr(FakeExecutor, "plan", without_devices)
    refused = site.submit(text, dry_run=True).json()
    assert refused["devices"]["problem"] == "not in the arguments: no GPU can be given to containers"
    assert refused["engine"] == {"argv": []}


def without_devices(_: object, request: LaunchRequest) -> dict[str, object]:
    """Plan as an executor does whose engine can inject no device."""
    if request.devices:
        raise Unavailable("no GPU can be given to containers")
    return {"argv": []}


def test_cancelling_twice_is_no_error(site: Site) -> None:
    site.submit()
    site.until("running")
    assert site.ask("POST", "/jobs/1/cancel").json()["changed"]
    site.until("finished")
    again = site.ask("POST", "/jobs/1/cancel")
    assert (again.status_code, again.json()["changed"]) == (200, False)
    assert again.json()["job"]["outcome"] == "cancelled"


@pytest.mark.parametrize("way", ["cancel", "hold", "signal"])
def test_of_several_jobs_with_a_name_what_needs_a_living_one_gets_the_newest_that_lives(
    site: Site, way: str
) -> None:
    for job_id in "123":
        site.submit()
        site.until("running", job_id)
    site.ask("POST", "/jobs/3/cancel")
    site.until("finished", "3")
    body = {"signal": "USR1"} if way == "signal" else None
    assert site.ask("POST", f"/jobs/job/{way}", body).json()["job"]["id"] == "2"
    assert site.job("job")["id"] == "3"  # what is asked about is the newest
    site.ask("POST", "/jobs/2/cancel")
    site.until("finished", "2")
    found = site.ask("POST", "/cancel", {"jobs": ["job"]}).json()["jobs"]
    assert [(each["job"]["id"], each["changed"]) for each in found] == [("1", True)]
    site.until("finished", "1")
    found = site.ask("POST", "/cancel", {"jobs": ["job", "2"]}).json()["jobs"]
    assert [(each["job"]["id"], each["changed"]) for each in found] == [("3", False), ("2", False)]


def test_somebody_else_may_look_but_not_touch(site: Site) -> None:
    site.submit()
    site.until("running")
    for path, body in (
        ("cancel", None),
        ("restart", {}),
        ("hold", None),
        ("release", None),
        ("signal", {"signal": "USR1"}),
    ):
        status, kind, message = error(site.ask("POST", f"/jobs/1/{path}", body, uid=4321))
        assert (status, kind) == (403, "refused")
        assert message.startswith("job 1: belongs to ")
    assert error(site.ask("GET", "/jobs/1/log", uid=4321))[0] == 403
    assert error(site.ask("GET", "/jobs/1/decisions", uid=4321))[0] == 403
    assert error(site.ask("POST", "/stop", uid=4321))[0] == 403
    assert site.ask("GET", "/jobs/1", uid=4321).status_code == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="asks as others")
def test_a_name_means_ones_own_job_first_and_is_refused_where_it_could_be_several(site: Site) -> None:
    for uid in (4711, 4712):
        assert site.submit(uid=uid).status_code == 201
    assert [site.ask("GET", "/jobs/job", uid=uid).json()["id"] for uid in (4711, 4712)] == ["1", "2"]
    assert site.ask("GET", "/jobs/job/why", uid=4711).json()["job"] == "1"
    assert {each["job"] for each in site.ask("GET", "/events?job=job", uid=4711).json()["events"]} == {"1"}
    assert site.ask("POST", "/jobs/job/cancel", uid=4711).json()["job"]["id"] == "1"
    for asked in (("GET", "/jobs/job"), ("POST", "/jobs/job/cancel")):
        status, kind, message = error(site.ask(*asked, uid=4713))
        assert (status, kind) == (403, "refused")
        assert message == "job: several users have a job of that name: 2 (4712), 1 (4711); give the id"


@pytest.mark.skipif(os.geteuid() != 0, reason="asks as others")
def test_the_name_of_one_persons_jobs_is_known_to_others(site: Site) -> None:
    for _ in range(2):
        site.submit(uid=4711)
    assert site.ask("GET", "/jobs/job", uid=4712).json()["id"] == "2"


def test_a_job_that_is_not_there_is_not_found(site: Site) -> None:
    assert error(site.ask("GET", "/jobs/nobody")) == (
        404,
        "not_found",
        "nobody: there is no job of that id or name; runner list --all",
    )


def test_signals_reach_the_attempt(site: Site) -> None:
    site.submit()
    site.until("running")
    [key] = site.context.running
    site.context.running[key] = Program(on_signal={10: None, 12: None})
    assert site.ask("POST", "/jobs/1/signal", {"signal": "sigusr1"}).status_code == 200
    assert site.ask("POST", "/jobs/1/signal", {"signal": "12"}).status_code == 200
    wait_until(lambda: [n for _, n in site.context.signals] == [10, 12] or None)
    assert error(site.ask("POST", "/jobs/1/signal", {"signal": "LUNCH"}))[0] == 422


def test_a_restart_begins_where_it_is_told_to(site: Site) -> None:
    site.submit()
    site.until("running")
    site.complete()
    site.until("finished")
    save(site, 40)
    answer = site.ask("POST", "/jobs/1/restart", {"from": 40})
    assert (answer.status_code, answer.json()["begins"]) == (200, "from step 40")
    wait_until(lambda: len(site.context.launches) == 2 or None)
    assert '"resume_step": 40' in (site.attempt_dir(attempt=2) / "spec.json").read_text()
    assert site.ask("POST", "/jobs/1/restart", {"from": "lunch"}).status_code == 422


@pytest.mark.parametrize("stands", ["running", "held", "finished"])
def test_a_restart_from_a_step_that_is_not_there_is_refused_and_changes_nothing(
    site: Site, stands: str
) -> None:
    site.submit()
    site.until("running")
    fact = "job 1: no valid checkpoint of step 17; lineage 1 has {}; nothing was changed"
    assert error(site.ask("POST", "/jobs/1/restart", {"from": 17}))[2] == fact.format("none")
    save(site, 40)
    save(site, 30)
    (save(site, 17) / "state.pt").write_bytes(b"torn")
    if stands == "held":
        site.ask("POST", "/jobs/1/hold")
    elif stands == "finished":
        site.complete()
    before = site.until(stands)
    assert error(site.ask("POST", "/jobs/1/restart", {"from": 17})) == (403, "refused", fact.format("30, 40"))
    assert site.job() == before


def save(site: Site, step: int) -> Path:
    """Put a valid checkpoint into the first lineage of the first job."""
    place = site.directory / "jobs" / "1" / "lineages" / "1" / f"step-{step:08d}"
    place.mkdir(parents=True)
    (place / "state.pt").write_bytes(b"state")
    manifest = Manifest(
        contract_version=1, job_id="1", step=step, lineage=1, attempt=1, revision=1, created=0.0,
        files={"state.pt": FileDigest(bytes=5, sha256=hashlib.sha256(b"state").hexdigest())},
    )  # fmt: skip
    (place / "manifest.json").write_text(dump(manifest))
    return place


def test_a_held_job_is_released_and_nothing_else_is(site: Site) -> None:
    site.submit()
    site.until("running")
    assert error(site.ask("POST", "/jobs/1/release"))[0] == 403
    assert site.ask("POST", "/jobs/1/hold").json()["job"]["state"] == "stopping"
    assert site.until("held")["why"].startswith("held by ")
    assert "lets it go on with no valid checkpoint" in site.ask("GET", "/jobs/1/why").json()["why"]
    released = site.ask("POST", "/jobs/1/release").json()
    assert (released["job"]["state"], released["begins"]) == (
        "preparing",
        "with no valid checkpoint to begin from",
    )
    assert site.until("running")["attempt"] == 2


def test_to_hold_a_job_twice_is_no_error(site: Site) -> None:
    site.submit()
    site.until("running")
    assert site.ask("POST", "/jobs/1/hold").json()["job"]["state"] == "stopping"
    assert site.ask("POST", "/jobs/1/hold").json()["job"]["state"] in {"stopping", "held"}
    before = site.until("held")
    assert site.ask("POST", "/jobs/1/hold").status_code == 200
    assert site.job() == before


def test_who_releases_a_program_whose_checkpoints_nobody_knows_is_told_that_it_begins_anew(
    site: Site,
) -> None:
    site.submit("workload: {kind: program, command: [./train]}\n")
    site.until("running")
    site.ask("POST", "/jobs/1/hold")
    site.until("held")
    begins = "from the beginning (no checkpoint.files tell what it saves)"
    assert begins in site.ask("GET", "/jobs/1/why").json()["why"]
    assert site.ask("POST", "/jobs/1/release").json()["begins"] == begins


def test_of_a_program_that_keeps_its_files_nobody_says_that_it_begins_anew(site: Site) -> None:
    kept = "checkpoint: {keep_files: true}\n"
    site.submit(f"workload: {{kind: program, command: [./train], code: .}}\n{kept}")
    site.until("running")
    site.ask("POST", "/jobs/1/hold")
    site.until("held")
    begins = "in the files that it has left (no checkpoint.files tell what it saves)"
    assert begins in site.ask("GET", "/jobs/1/why").json()["why"]
    assert site.ask("POST", "/jobs/1/release").json()["begins"] == begins
    site.until("running")
    site.ask("POST", "/jobs/1/cancel")
    site.until("finished")
    assert site.ask("POST", "/jobs/1/restart", {"from": "checkpoint"}).json()["begins"] == begins


@pytest.mark.parametrize(
    ("verb", "then"),
    [("hold", {"held": None}), ("cancel", {"finished": "cancelled"}), ("restart", {"running": None})],
)
def test_a_program_that_exits_with_0_when_it_is_told_to_stop_has_not_succeeded(
    site: Site, verb: str, then: dict[str, str | None]
) -> None:
    site.submit("workload: {kind: program, command: [./train]}\n")
    site.until("running")
    [key] = site.context.running
    site.context.running[key] = Program(on_signal={15: 0})
    site.ask("POST", f"/jobs/1/{verb}", {} if verb == "restart" else None)
    [(state, outcome)] = then.items()
    found = site.until(state)
    assert found.get("outcome") == outcome
    assert len(found["attempts"]) == (2 if verb == "restart" else 1)


def test_a_decision_that_cannot_be_read_is_named_beside_the_others(site: Site) -> None:
    site.submit()
    for body in ('{"n": 1}', "torn", "[]", '{"n": 2}'):
        site.store.decided(DecisionRow("1", 1, "watch", site.service.clock.now(), body))
    answer = site.ask("GET", "/jobs/1/decisions").json()
    assert answer["decisions"] == [{"n": 1}, {"n": 2}]
    torn, listed = answer["unreadable"]
    assert torn.startswith("decisions: job_id=1, attempt=1, seq=2")
    assert listed.endswith("is no JSON object")
    assert site.ask("GET", "/jobs/1").json()["unreadable"] == answer["unreadable"]


def test_decisions_are_told_with_all_that_led_to_them(site: Site) -> None:
    site.submit()
    site.until("running")
    assert site.ask("GET", "/jobs/1/decisions").json() == {"decisions": [], "unreadable": []}
    site.end(137)
    wait_until(lambda: len(site.context.launches) == 2 or None)
    site.until("running")
    [kept] = site.ask("GET", "/jobs/1/decisions").json()["decisions"]
    assert (kept["attempt"], kept["moment"], kept["facts"]["exit.code"]) == (1, "exit", 137)
    assert (kept["verdict"]["do"], kept["verdict"]["limit"]) == ("restart", "no_checkpoint")
    assert kept["policy"]["name"] == "default"
    assert site.ask("GET", "/jobs/1/decisions?attempt=2").json() == {"decisions": [], "unreadable": []}
    beside = site.attempt_dir().with_name("1.exit.json")
    assert wait_until(lambda: json.loads(beside.read_text()) if beside.exists() else None) == kept


def test_a_policy_of_ones_own_is_read_with_the_job_file(site: Site) -> None:
    (site.directory / "mine.yaml").write_text("policy: 1\nextends: strict\nceilings: {attempts: 2}\n")
    assert site.submit(JOB + "policy: ./mine.yaml\n").status_code == 201
    assert site.job()["attempts_max"] == 2
    assert site.job()["revision"]["policy"].startswith("policy: 1\nname: mine\n")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("./mine.yaml", "/mine.yaml:2:11: on_exit: must be a list"),
        ("./none.yaml", "/none.yaml: does not exist"),
        ("./none.yaml", "job.yaml:3:9: policy: "),
        ("./beside", "job.yaml:3:9: policy: "),
        ("defalt", 'job.yaml:3:9: policy: there is no policy "defalt"; did you mean "default"?'),
    ],
)
def test_a_wrong_policy_is_refused_with_its_own_place(site: Site, policy: str, words: str) -> None:
    (site.directory / "mine.yaml").write_text("policy: 1\non_exit:  5\n")
    (site.directory / "beside").mkdir()
    status, kind, message = error(site.submit(JOB + f"policy: {policy}\n", shown="job.yaml"))
    assert (status, kind) == (422, "usage")
    assert words in message


def test_waiting_ends_when_the_job_does(site: Site) -> None:
    site.submit()
    site.until("running")
    assert not site.ask("GET", "/jobs/1/wait?timeout=0.05").json()["done"]
    site.complete()
    assert site.ask("GET", "/jobs/1/wait?timeout=10").json()["done"]


@pytest.mark.parametrize(
    "question", ["/jobs/1/wait?timeout=1e6", "/jobs/1/log?wait=1e6", "/events?after=99&wait=1e6"]
)
def test_a_question_that_waits_is_answered_with_what_there_is_when_the_daemon_leaves(
    site: Site, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "LONGEST_WAIT_S", inf)
    site.submit()
    site.until("running")
    site.service.broadcast.leave()
    answer = site.ask("GET", question)
    assert answer.status_code == 200
    assert answer.text == "" or answer.json().get("done", False) is False


def test_progress_is_shown_while_the_job_runs(site: Site) -> None:
    site.submit()
    site.until("running")
    (site.attempt_dir() / "status.json").write_text(dump(Status(phase=Phase.TRAIN, time=1.0, step=7)))
    assert site.job()["progress"]["step"] == 7
    assert site.ask("GET", "/jobs").json()["jobs"][0]["progress"]["step"] == 7


def test_what_a_job_told_last_is_listed_where_it_is_asked_for(site: Site) -> None:
    site.submit()
    site.until("running")
    (site.attempt_dir() / "status.json").write_text(
        dump(Status(phase=Phase.TRAIN, time=1.0, step=7, loss=0.5))
    )
    [running] = site.ask("GET", "/jobs?last=1").json()["jobs"]
    assert (running["progress"]["step"], running["last_progress"]) == (7, None)
    site.complete()
    site.until("finished")
    [ended] = site.ask("GET", "/jobs?last=1").json()["jobs"]
    assert (ended["progress"], ended["last_progress"]["loss"]) == (None, 0.5)
    assert "last_progress" not in site.ask("GET", "/jobs").json()["jobs"][0]
    assert site.job()["last_progress"] == ended["last_progress"]


def test_a_log_is_read_in_pieces_and_to_its_end(site: Site) -> None:
    site.submit()
    site.until("running")
    log = site.attempt_dir() / "log.txt"
    log.write_text("one\ntwo\n")
    first = site.ask("GET", "/jobs/1/log")
    assert (first.text, first.headers["x-runner-next-offset"]) == ("one\ntwo\n", "8")
    assert first.headers["x-runner-attempt-ended"] == "0"
    assert site.ask("GET", "/jobs/1/log?offset=4").text == "two\n"
    assert site.ask("GET", "/jobs/1/log?offset=8&wait=0.2").text == ""
    site.end(137)
    wait_until(lambda: len(site.job()["attempts"]) == 2 or None)
    last = site.ask("GET", "/jobs/1/log?attempt=1&offset=8").headers
    ends = [last[f"x-runner-{name}"] for name in ("attempt-ended", "next-attempt", "job-ended")]
    assert ends == ["1", "2", "0"]


def test_what_the_quota_cut_out_is_told(site: Site) -> None:
    site.submit()
    site.until("running")
    with (site.attempt_dir() / "log.txt").open("wb") as log:
        log.write(b"a" * 65536)
        log.seek(4 * 1024**2)
        log.write(b"z" * 10)
    assert site.ask("GET", "/jobs/1/log?offset=0").text == "a" * 65536
    hole = site.ask("GET", "/jobs/1/log?offset=65536")
    assert (hole.text, hole.headers["x-runner-cut"]) == ("", f"65536-{4 * 1024**2}")
    assert site.ask("GET", f"/jobs/1/log?offset={4 * 1024**2}").text == "z" * 10


def test_an_attempt_that_there_is_not_has_no_log(site: Site) -> None:
    site.submit()
    site.until("running")
    status, kind, message = error(site.ask("GET", "/jobs/1/log?attempt=9"))
    assert (status, kind, message) == (404, "not_found", "job 1: there is no attempt 9; there are 1")
    site.submit(JOB + "resources: {gpus: 1}")
    site.submit(JOB + "resources: {gpus: 1}")
    assert error(site.ask("GET", "/jobs/3/log?attempt=2"))[2].endswith(
        "there is no attempt 2; there are none yet"
    )


def test_the_log_of_the_next_attempt_is_empty_until_no_attempt_comes(site: Site) -> None:
    site.submit(JOB + "resources: {gpus: 1}")
    site.submit(JOB + "resources: {gpus: 1}")
    answer = site.ask("GET", "/jobs/2/log?attempt=1")
    ends = (answer.headers["x-runner-attempt-ended"], answer.headers["x-runner-job-ended"])
    assert (answer.status_code, answer.text, ends) == (200, "", ("0", "0"))
    site.ask("POST", "/jobs/2/cancel")
    assert site.ask("GET", "/jobs/2/log?attempt=1").status_code == 404


def test_the_build_has_a_log_of_its_own(site: Site) -> None:
    site.submit()
    site.until("running")
    assert site.ask("GET", "/jobs/1/log?part=build").text == "building\nbuilt\n"


def test_a_job_without_attempts_has_an_empty_log(site: Site) -> None:
    site.context.down = True
    site.submit(JOB + "resources: {cpus: 4}")
    site.submit()
    assert site.ask("GET", "/jobs/2/log").text == ""


def test_events_are_read_from_where_one_stopped(site: Site) -> None:
    site.submit()
    site.until("running")
    said = site.ask("GET", "/events").json()
    assert [event["kind"] for event in said["events"]] == ["submitted", "image_ready", "placed", "launched"]
    assert site.ask("GET", f"/events?after={said['next']}&wait=0.05").json() == {
        "events": [],
        "next": said["next"],
    }
    assert [e["kind"] for e in site.ask("GET", "/events?job=job&after=2").json()["events"]] == [
        "placed",
        "launched",
    ]


def test_version_and_stop(site: Site) -> None:
    said = site.ask("GET", "/version").json()
    assert (said["executor"], said["pid"]) == ("fake", os.getpid())
    assert site.ask("POST", "/stop").status_code == 200
    assert site.left == ["left"]


def test_lists_can_be_narrowed(site: Site) -> None:
    site.submit()
    assert len(site.ask("GET", "/jobs?mine=1").json()["jobs"]) == 1
    assert site.ask("GET", "/jobs?all=1&limit=0").json()["jobs"][0]["id"] == "1"


def test_a_peer_is_read_from_the_scope() -> None:
    class Address:
        host, port = "1001:1002", 4711

    assert peer_of(Address()) == Peer(4711, 1001, 1002)


@pytest.mark.parametrize("number", [2**63, 10**23, -1, -(10**23)])
@pytest.mark.parametrize(
    "path",
    [
        "/events?after={}",
        "/jobs/job/log?attempt={}",
        "/jobs/job/log?offset={}",
        "/jobs/job/decisions?attempt={}",
    ],
)
def test_a_number_that_the_store_cannot_hold_is_a_mistake_of_whoever_asks(
    site: Site, path: str, number: int
) -> None:
    site.submit()
    status, kind, message = error(site.ask("GET", path.format(number)))
    assert (status, kind) == (422, "usage")
    assert message.startswith("query.")


@pytest.mark.parametrize("number", [2**63, 10**23, -(10**23)])
def test_a_limit_of_any_size_is_brought_into_its_range(site: Site, number: int) -> None:
    site.submit()
    for path in (f"/events?limit={number}", f"/jobs?limit={number}", f"/events?wait=-{abs(number)}"):
        assert site.ask("GET", path).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("restart", {"from": 10**23}),
        ("signal", {"signal": "9" * 19}),
    ],
)
def test_a_number_in_a_body_that_the_store_cannot_hold_is_a_mistake_too(
    site: Site, path: str, body: dict[str, object]
) -> None:
    site.submit()
    assert site.ask("POST", f"/jobs/job/{path}", body).status_code == 422
