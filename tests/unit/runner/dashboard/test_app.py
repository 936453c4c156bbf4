"""The pages over a daemon that answers from dictionaries: what they show, and whom they refuse."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from runner.client.autostart import Endpoint
from runner.client.client import Client
from runner.dashboard.access import SESSION_S, Access
from runner.dashboard.app import application
from runner.dashboard.daemon import Daemon
from runner.dashboard.pages import LAST_EVENTS
from runner.dashboard.sweeps import usual_best
from tests.fakes.daemon.api import AT, FakeApi, an_attempt, ended

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"
LOSS = [[1000.0 + n, 10 * n, 1 / (n + 1), 0.1, 1.0, 1] for n in range(50)]
GiB = 2**30
NO_DIFFERENCE: dict[str, Any] = {
    "before": "train@1",
    "after": "later@1",
    "class": "none",
    "changes": [],
    "code": [],
    "code_unknown": [],
}


def a_device(number: int = 0, **facts: object) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{number}",
        "name": f"GPU-{number}",
        "vendor": "nvidia",
        "model": "H100",
        "memory_bytes": 80 * GiB,
        "util": 97.0,
        "memory": 0.5,
        "state": "allocated",
        "reason": "",
        "temperature_c": 60,
        "power_w": 400.0,
        "jobs": [{"id": "000001", "name": "train", "owner": "ada"}],
    } | facts


def listed(job: dict[str, Any]) -> dict[str, Any]:
    wants = {"gpus": 1, "cpus": 4.0, "memory_bytes": GiB}
    more = {"wants": wants, "util": 97.0, "memory": 0.5, "alarm": None}
    return {**job, **more, "saved_step": 5, "started_at": AT, "starts_at": None}


def an_overview(jobs: list[dict[str, Any]], **facts: object) -> dict[str, Any]:
    return {
        "at": AT,
        "executor": "docker",
        "cpus": {"lent": 4, "total": 64},
        "memory_bytes": {"lent": GiB, "total": 8 * GiB},
        "devices": [a_device()],
        "jobs": [listed(job) for job in jobs if job["state"] != "queued"],
        "queue": [listed(job) for job in jobs if job["state"] == "queued"],
        "queue_length": 1,
    } | facts


class Desk:
    """A browser that has opened the link."""

    def __init__(self, api: FakeApi, **facts: Any) -> None:
        self.api = api
        self.access = Access(time.monotonic, **facts)
        client = Client(Endpoint(str(api.socket_path), None))
        app = application(Daemon(client, time.monotonic), self.access)
        self.browser = TestClient(
            app, base_url=f"http://localhost:8433{self.access.place}", follow_redirects=False
        )

    def log_in(self) -> "Desk":
        answer = self.browser.get("/login", params={"ticket": self.access.new_ticket()})
        assert answer.status_code == 200
        assert f'content="0;url={self.access.place}/"' in answer.text
        return self

    def page(self, path: str, status: int = 200) -> str:
        answer = self.browser.get(path)
        assert answer.status_code == status, answer.text
        return answer.text.replace(self.access.place, "")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApi]:
    with FakeApi(tmp_path / "runner.sock") as api:
        job = api.add("train", saved_step=5)
        api.curves[job["id"]] = {"loss": LOSS, "memory_bytes": LOSS}
        api.whys[job["id"]] = {
            "job": job["id"],
            "name": "train",
            "state": "running",
            "why": "attempt 1 runs",
            "starts_at": None,
            "until": AT,
        }
        api.logs[job["id"], 1] = b"step 1\nstep 2\n"
        api.changes["devices"] = [{"curves": {}} for _ in range(9)]
        api.changes["revisions"] = [{"revisions": []} for _ in range(9)]
        api.answers["overview"] = an_overview(
            [job, {**api.add("later"), "state": "queued", "why": "waits for GPU-0", "progress": None}]
        )
        api.answers["usage"] = {
            "uses": [],
            "total": {
                "who": "",
                "device_s": 0,
                "cpu_s": 3600,
                "share": 1.0,
                "efficiency": None,
                "utilisation": None,
                "attempts": 1,
            },
        }
        api.answers["diff"] = NO_DIFFERENCE
        yield api


@pytest.fixture
def desk(api: FakeApi) -> Desk:
    return Desk(api).log_in()


def test_the_machine_shows_devices_jobs_and_the_queue_with_reasons(desk: Desk) -> None:
    shown = desk.page("/")
    for words in (
        "GPU-0",
        "H100",
        "97 %",
        "60 °C",
        "400 W",
        "1 GiB of 8 GiB",
        "train",
        "10/100",
        "waits for GPU-0",
    ):
        assert words in shown


def test_a_job_shows_its_state_attempts_curves_log_and_what_one_may_do(desk: Desk) -> None:
    shown = desk.page("/jobs/train")
    for words in (
        "attempt 1 runs",
        "step 1\nstep 2",
        "<figcaption>loss</figcaption>",
        'action="/jobs/000001/cancel"',
        "2026-03-01 12:00:00 UTC",
    ):
        assert words in shown


def test_a_decision_is_explained_rule_by_rule(desk: Desk, api: FakeApi) -> None:
    rule = {
        "name": "crashed",
        "do": "resume",
        "truth": True,
        "because": ["exit.code = 1 (wanted: 1)"],
        "note": "",
    }
    verdict = {"do": "resume", "rule": "crashed", "reason": "resume: exit 1"}
    api.decisions["000001"] = [
        {
            "record": 1,
            "attempt": 1,
            "at": AT,
            "policy": {"name": "default"},
            "facts": {"exit.code": 1},
            "verdict": verdict,
            "rules": [rule],
        }
    ]
    shown = desk.page("/jobs/000001")
    assert "exit.code = 1 (wanted: 1)" in shown
    assert "<strong>resume</strong> by rule crashed: resume: exit 1" in shown


def test_a_job_that_has_ended_shows_its_life(desk: Desk, api: FakeApi) -> None:
    api.jobs["000001"].update(
        **ended(),
        attempts=[
            an_attempt(1, ended_at=AT, exit_code=137, cause="killed", verdict="resume"),
            an_attempt(2, ended_at=AT, exit_code=0, cause="completed"),
        ],
    )
    shown = desk.page("/jobs/000001")
    assert '<rect class="bad"' in shown
    assert '<rect class="good"' in shown
    assert "killed (exit 137)" in shown
    assert "Restart from scratch" in shown


def test_a_job_that_has_ended_keeps_its_last_loss(desk: Desk, api: FakeApi) -> None:
    api.jobs["000001"].update(**ended())
    assert f"<dt>Loss</dt><dd>{LOSS[-1][2]:.5g}</dd>" in desk.page("/jobs/000001")
    api.curves["000001"] = {}
    assert "<dt>Loss</dt><dd>-</dd>" in Desk(api).log_in().page("/jobs/000001")


def test_a_first_step_that_is_not_known_is_not_said_to_be_0(desk: Desk, api: FakeApi) -> None:
    api.jobs["000001"].update(attempts=[an_attempt(1, resumed_from=0), an_attempt(2, checkpoint_step=7)])
    shown = "".join(desk.page("/jobs/000001").split())
    assert "<td>0</td><td>-</td>" in shown
    assert "<td>-</td><td>7</td>" in shown


def test_the_last_events_of_a_job_are_shown_the_newest_first(desk: Desk, api: FakeApi) -> None:
    facts = {"job": "000001", "name": "train", "at": AT, "kind": "noted"}
    api.events = [{**facts, "seq": seq, "text": f"note {seq}."} for seq in range(1, LAST_EVENTS + 6)]
    shown = desk.page("/jobs/000001")
    assert f"Events (the last {LAST_EVENTS})" in shown
    assert shown.count("note ") == LAST_EVENTS
    assert shown.index(f"note {LAST_EVENTS + 5}.") < shown.index("note 6.")


def test_a_job_without_a_checkpoint_is_not_offered_a_restart_from_one(desk: Desk, api: FakeApi) -> None:
    api.jobs["000001"].update(**ended(), saved_step=None)
    shown = desk.page("/jobs/000001")
    assert ">Restart</button>" in shown
    assert "Restart from" not in shown


def test_a_checkpoint_that_has_no_step_is_shown_as_a_version(desk: Desk, api: FakeApi) -> None:
    api.jobs["000001"].update(**ended(), saved_step=None, saved_version=3)
    shown = desk.page("/jobs/000001")
    assert "saved version 3" in shown
    assert "<dt>Saved</dt><dd>version 3</dd>" in shown
    assert "Restart from the checkpoint" in shown


def test_hostile_names_reasons_and_logs_stay_text(desk: Desk, api: FakeApi) -> None:
    api.jobs["000001"].update(name=HOSTILE, why=HOSTILE, advice=[HOSTILE], labels={HOSTILE: HOSTILE})
    api.logs["000001", 1] = HOSTILE.encode() * 10
    api.curves["000001"] = {HOSTILE: LOSS}
    api.answers["overview"] = an_overview(
        [api.jobs["000001"]], devices=[a_device(reason=HOSTILE, model=HOSTILE)]
    )
    for path in ("/", "/jobs", "/jobs/000001", "/compare?job=000001"):
        shown = desk.page(path)
        assert "<script>alert" not in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert "&lt;script&gt;" in shown


def test_two_jobs_are_compared_in_one_chart(desk: Desk, api: FakeApi) -> None:
    api.curves["000002"] = {"loss": LOSS}
    shown = desk.page("/compare?job=train&job=later")
    assert shown.count("<figure") == 1
    assert "train (000001)" in shown
    assert "runner diff 000001 000002" in shown
    assert "Type the ids" in desk.page("/compare")
    assert "at most 12" in desk.page("/compare?job=" + "1+" * 13, 404)
    assert "train (000001)" in desk.page("/compare?job=train&job=000001")


def test_curves_are_compared_over_steps_or_over_time(desk: Desk, api: FakeApi) -> None:
    api.curves["000002"] = {"loss": LOSS}
    assert '<text x="632" y="194" text-anchor="end">490</text>' in desk.page("/compare?job=000001&job=000002")
    over_time = desk.page("/compare?job=000001&job=000002&x=time")
    assert '<option value="time" selected>' in over_time
    assert f">{49 / 3600:.4g} h</text>" in over_time


def test_what_differs_between_two_jobs_is_shown_with_their_code(desk: Desk, api: FakeApi) -> None:
    entry = {"kind": "file", "size": 10, "digest": "a", "executable": False}
    change = {"field": "workload.lr", "before": 0.1, "after": HOSTILE, "class": "resume", "why": "the rate"}
    files = [
        {"path": "train.py", "before": entry, "after": entry, "texts": ["lr = 1\ns\n", f"{HOSTILE}\ns\n"]},
        {"path": "big.bin", "before": None, "after": entry, "texts": None},
        {"path": "long.py", "before": None, "after": entry, "texts": ["", "x\n" * 1000]},
    ]  # fmt: skip
    api.answers["diff"] = NO_DIFFERENCE | {"changes": [change], "code": files, "code_unknown": ["later@1"]}
    shown = desk.page("/compare?job=000001&job=000002")
    assert '<th scope="row"><code>workload.lr</code></th><td>0.1</td>' in shown
    assert '<span class="removed">-lr = 1</span>' in shown
    assert '<span class="added">+&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m\\u202e</span>' in shown
    assert "lines: 1 added, 1 removed" in shown
    assert "absent -&gt; file of 10 bytes; not compared line by line" in shown
    assert "701 more lines" in shown  # one of them says where they are
    assert "later@1: its code was not kept" in shown
    asked = [each for each in api.asked if each[1].endswith("/diff")]
    assert asked == [("POST", "/v1/jobs/000001/diff", {"job": "000002"})]
    desk.page("/compare?job=000001&job=000002")
    assert [each for each in api.asked if each[1].endswith("/diff")] == asked  # it was kept


def test_what_one_may_not_know_of_two_jobs_is_said(desk: Desk, api: FakeApi) -> None:
    assert "Nothing differs" in desk.page("/compare?job=000001&job=000002")
    api.secret.add("000002")
    assert "belongs to somebody else" in desk.page("/compare?job=000002&job=000001")
    api.add("third")
    assert 'href="/compare?job=000001&amp;job=000003#difference"' in desk.page(
        "/compare?job=000001,000002,000003"
    )


def test_a_sweep_marks_its_best(desk: Desk, api: FakeApi) -> None:
    for job, rate in zip(api.jobs.values(), (0.1, 0.01), strict=True):
        job.update(revision={"job": {}, "sweep": {"values": {"rate": rate}}}, saved_step=None)
    api.curves["000002"] = {"loss": [[1.0, 1, 0.001, 0, 0, 1]]}
    shown = desk.page("/sweeps/000001")
    assert '<tr class="best">' in shown
    assert shown.index("least loss") > shown.index("later</a>")


def test_a_sweep_is_drawn_with_its_best_job_and_the_same_in_words(desk: Desk, api: FakeApi) -> None:
    api.add("third")
    given = ({"rate": 0.1, "by": "adam"}, {"rate": 0.001, "by": HOSTILE}, {"rate": 0.01, "by": "sgd"})
    for job, values in zip(api.jobs.values(), given, strict=True):
        job.update(revision={"job": {}, "sweep": {"values": values}}, saved_step=None)
    api.curves["000002"] = {"accuracy": [[1.0, 1, 0.7, 0, 0, 1]], "loss": [[1.0, 1, 0.001, 0, 0, 1]]}
    shown = desk.page("/sweeps/000001")
    assert '<svg class="sweep"' in shown
    assert "loss of 3 jobs by rate, by</title>" in shown
    assert "best: later: loss 0.001; rate=0.001" in shown
    assert "1 of 3 jobs have no result; logarithmic: rate" in shown
    assert shown.count('<g class="best">') == shown.count('<g class="missing">') == 1
    assert "<script>alert" not in shown
    assert "\x1b" not in shown
    assert "least loss" in shown
    assert "largest loss" in desk.page("/sweeps/000001?metric=loss&best=largest")
    assert "largest accuracy" in desk.page("/sweeps/000001?metric=accuracy")
    assert "least accuracy" in desk.page("/sweeps/000001?metric=accuracy&best=least")


@pytest.mark.parametrize(
    ("values", "told"), [({"rate": 0.1}, "No job has reported a result yet"), ({}, "have no parameters")]
)
def test_a_sweep_without_a_picture_says_why(
    desk: Desk, api: FakeApi, values: dict[str, float], told: str
) -> None:
    api.curves.clear()
    for job in api.jobs.values():
        job.update(revision={"job": {}, "sweep": {"values": values}}, saved_step=None)
    assert told in desk.page("/sweeps/000001")


@pytest.mark.parametrize(
    ("metric", "which"),
    [
        ("loss", "least"),
        ("eval_loss", "least"),
        ("perplexity", "least"),
        ("memory_bytes", "least"),
        ("accuracy", "largest"),
        ("val/acc@5", "largest"),
        ("items_per_s", "largest"),
        ("eval_f1", "largest"),
        ("logistic", "least"),
    ],
)
def test_the_name_of_a_result_tells_which_is_the_best(metric: str, which: str) -> None:
    assert usual_best(metric) == which


def test_filters_keep_what_they_accept(desk: Desk, api: FakeApi) -> None:
    for job in api.jobs.values():
        job["saved_step"] = None
    api.jobs["000002"].update(owner="bob", **ended("failed", "exit 1"))
    assert 'href="/jobs/000001"' not in desk.page("/jobs?state=failed")
    assert 'href="/jobs/000002"' in desk.page("/jobs?user=bob&text=exit&sort=name")
    assert "No job is like that" in desk.page("/jobs?text=nothing-like-it")


def test_other_pages_are_shown(desk: Desk, api: FakeApi) -> None:
    api.schedules.append(
        {
            "name": "nightly",
            "owner": "ada",
            "state": "active",
            "cron": "0 3 * * *",
            "next": ["2030-01-01T03:00"],
            "last": None,
        }
    )
    assert "nightly" in desk.page("/schedules")
    assert "1.0" in desk.page("/usage")


def test_what_giving_way_cost_and_spared_is_shown_where_there_was_any(desk: Desk, api: FakeApi) -> None:
    assert "Preempted" not in desk.page("/usage")
    total = api.answers["usage"]["total"]
    switches = {"gave_way": 3, "gave_way_cost_s": 900.0, "preferred": 2, "spared_wait_s": 7200.0}
    api.answers["usage"] = {"uses": [{**total, **switches, "who": "ada"}], "total": {**total, **switches}}
    shown = desk.page("/usage?by=team")
    assert "Spared wait in hours" in shown
    assert shown.count("<td>3</td><td>0.25</td><td>2</td><td>2.0</td>") == 2


def test_the_page_of_policies_counts_and_links_what_one_may_read(desk: Desk, api: FakeApi) -> None:
    assert '<a href="/policy">Policy</a>' in desk.page("/jobs")
    assert "No policy was asked about these jobs." in desk.page("/policy")
    rules = [{"name": HOSTILE, "do": "resume", "truth": True, "because": [], "note": ""}]
    verdict = {"do": "resume", "rule": HOSTILE, "reason": "resume"}
    record = {"attempt": 1, "at": AT, "moment": "exit", "rules": rules, "verdict": verdict}
    api.decisions["000001"] = [{**record, "policy": {"name": "ours", "digest": "abc"}}] * 201
    api.secret.add("000002")
    shown = Desk(api).log_in().page("/policy")
    assert "200 decisions about 1 job," in shown
    assert "&lt;script&gt;" in shown
    assert "<script>alert" not in shown
    assert '<a href="/jobs/000001#decisions">' in shown
    assert "1 more job is left out" in shown


def test_a_change_is_made_from_the_page_and_shown(desk: Desk, api: FakeApi) -> None:
    desk.page("/jobs/000001")
    token = desk.access.form_token(desk.browser.cookies["runner_dash"])
    answer = desk.browser.post(
        "/jobs/000001/cancel", data={"token": token}, headers={"Origin": "http://localhost:8433"}
    )
    assert (answer.status_code, answer.headers["location"]) == (303, f"{desk.access.place}/jobs/000001")
    assert api.jobs["000001"]["outcome"] == "cancelled"


@pytest.mark.parametrize(
    ("token", "origin", "verb"),
    [
        ("", None, "cancel"),
        ("right", "http://evil.example", "cancel"),
        ("right", None, "cancel"),
        ("right", "http://localhost:8433", "signal"),
        ("x" * 9000, None, "cancel"),
    ],
)
def test_a_change_that_others_caused_is_refused(
    desk: Desk, api: FakeApi, token: str, origin: str | None, verb: str
) -> None:
    if token == "right":  # noqa: S105  stands for the token of the session
        token = desk.access.form_token(desk.browser.cookies["runner_dash"])
    headers = {} if origin is None else {"Origin": origin}
    answer = desk.browser.post(f"/jobs/000001/{verb}", data={"token": token}, headers=headers)
    assert answer.status_code in {403, 404, 413}
    assert api.jobs["000001"]["state"] == "running"


def test_without_the_link_nothing_is_shown(api: FakeApi) -> None:
    desk = Desk(api)
    for path in (
        "/",
        "/jobs",
        "/jobs/000001",
        "/jobs/000001/curves.json",
        "/jobs/000001/log",
        "/live",
        "/compare",
    ):
        assert desk.browser.get(path).status_code == 401
    assert not api.asked
    assert desk.browser.get("/login", params={"ticket": "guess"}).status_code == 403


def test_the_cookie_is_for_this_site_and_no_script(api: FakeApi) -> None:
    desk = Desk(api)
    cookie = (
        desk.browser.get("/login", params={"ticket": desk.access.new_ticket()}).headers["set-cookie"].lower()
    )
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert f"path={desk.access.place.lower()}/;" in cookie
    assert f"max-age={SESSION_S}" in cookie


def test_the_cookie_goes_to_no_other_port_of_the_loopback(desk: Desk) -> None:
    sent = desk.browser.build_request("GET", "/jobs")
    assert "cookie" in sent.headers
    for place in ("", "/", "/login", "/jobs", desk.access.place[:-1]):
        sent = desk.browser.build_request("GET", f"http://localhost:9999{place}")
        assert "cookie" not in sent.headers


@pytest.mark.parametrize("path", ["/", "/jobs", "/login", "/static/dash.css", "/nowhere"])
def test_outside_of_its_place_a_dashboard_says_nothing_of_it(desk: Desk, path: str) -> None:
    answer = desk.browser.get(f"http://localhost:8433{path}")
    assert answer.status_code == 404
    assert desk.access.place not in answer.text + str(answer.headers)


def test_the_cookie_of_another_users_dashboard_opens_nothing(api: FakeApi, desk: Desk) -> None:
    other = Desk(api).log_in()
    desk.browser.cookies = other.browser.cookies
    for path in ("/", "/jobs/000001", "/jobs/000001/log", "/jobs/000001/curves.json", "/live"):
        assert desk.browser.get(path).status_code == 401


def test_answers_are_kept_within_a_bound(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.dashboard.daemon.MOST_KEPT_BYTES", 5000)
    daemon = Daemon(Client(Endpoint(str(api.socket_path), None)), lambda: 0.0)
    for number in range(50):
        daemon.get("/v1/jobs", {"limit": 200 + number})
        assert daemon._kept_bytes <= 5000
        assert len(daemon._kept) < 50
    asked = len(api.asked)
    daemon.get("/v1/jobs", {"limit": 249})
    assert len(api.asked) == asked
    monkeypatch.setattr("runner.dashboard.daemon.MOST_KEPT_BYTES", 10)
    daemon.get("/v1/jobs", {"limit": 7})
    assert not daemon._kept


@pytest.mark.parametrize("path", ["/", "/nothing", "/static/dash.css", "/login", "/jobs/000001/curves.json"])
def test_every_answer_forbids_what_is_foreign(desk: Desk, path: str) -> None:
    headers = desk.browser.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/vendor/../../app.py",
        "/jobs/..%2f..%2fv1%2fstop",
    ],
)
def test_no_path_leads_out_of_the_static_files(desk: Desk, path: str) -> None:
    assert desk.browser.get(path).status_code == 404


def test_a_foreign_name_is_refused(desk: Desk) -> None:
    assert desk.browser.get("/", headers={"Host": "evil.example"}).status_code == 421


def test_a_read_only_dashboard_offers_no_change(api: FakeApi) -> None:
    desk = Desk(api, needs_login=False, read_only=True)
    assert '<form method="post"' not in desk.page("/jobs/000001")
    assert (
        desk.browser.post(
            "/jobs/000001/cancel", data={"token": desk.access.form_token("anybody")}
        ).status_code
        == 403
    )
    assert api.jobs["000001"]["state"] == "running"


def test_a_daemon_that_is_away_is_said(desk: Desk, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.client.client.ABSENCE_LIMIT_S", 0.0)
    api.socket_path.unlink()
    assert "no daemon answers" in desk.page("/", 503)
    api.socket_path.touch()


def test_a_log_is_given_piece_by_piece(desk: Desk) -> None:
    answer = desk.browser.get("/jobs/000001/log", params={"offset": 7, "attempt": 1})
    assert (answer.text, answer.headers["x-next-offset"], answer.headers["x-attempt"]) == (
        "step 2\n",
        "14",
        "1",
    )
    assert answer.headers["content-type"].startswith("text/plain")
    whole = desk.browser.get("/jobs/000001/log?offset=0&download=1")
    assert whole.headers["content-disposition"] == 'attachment; filename="job-000001-attempt-1.log"'


def test_the_page_of_a_job_has_its_account_where_there_is_one(desk: Desk) -> None:
    assert "<dt>Time</dt>" not in desk.page("/jobs/000001")
    parts = dict.fromkeys(("waiting_s", "starting_s", "saving_s", "lost_s"), 25.0)
    desk.api.accounts["000001"] = {
        "job": "000001",
        "asked": {"memory_bytes": 2**32, "cpus": 2.0, "gpus": 1},
        "used": {"memory_bytes": {"peak": 2**30, "mean": 2**29}, "cpus": None, "devices": {}},
        "time": {**parts, "work_s": 900.0, "total_s": 1000.0, "goodput": 0.9},
        "advice": [],
    }
    page = desk.page("/jobs/000001")
    assert "<dt>Time</dt><dd>90 % work of 16m40s; waiting 25s" in page
    assert "<dt>Used</dt><dd>memory 1 GiB of 4 GiB, 512 MiB on average; energy unknown</dd>" in page


def test_the_curves_come_in_columns(desk: Desk) -> None:
    found = desk.browser.get("/jobs/000001/curves.json").json()
    assert found["loss"]["x"][:3] == [0, 10, 20]
    assert found["loss"]["steps"] is True
