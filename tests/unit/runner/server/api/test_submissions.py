"""Submitting over a real daemon and store: matrices, dependencies, refusals, and options beside the file."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import local
from typing import Any

import pytest

from jobs.contract import TrainingPlan
from runner.adapters.host.users import HostUsers
from runner.adapters.sqlite.store import SqliteStore
from runner.agent.host_processes import HostProcesses
from runner.base import privileges
from runner.base.errors import Refused, Unavailable
from runner.base.textfile import FileError
from runner.cli.written_file import job_file
from runner.control.controller import Controller
from runner.core.job.attempt import Attempt
from runner.core.ports.devices import Device as GpuDevice
from runner.core.ports.images import ImageRefused, PullPolicy
from runner.core.ports.store import JobRow
from runner.core.ports.users import User
from runner.core.scheduler.config import Quota, Quotas, SchedulerConfig
from runner.core.scheduler.snapshot import DependencyCondition, Snapshot
from runner.files.job.load import parse_job
from runner.files.job.model import MountEntry, checkpoint_plan
from runner.files.revision import InitialWeights, Revision, parse_revision
from runner.files.settings.model import Settings
from runner.files.submission import Submission
from runner.services.context import Caller, NotFound
from runner.services.rollout.job_diff import JobDiff
from runner.services.rollout.trial import canary_revision
from runner.services.submission.resolve import accelerator_of, team
from tests.fakes.engine.images import FakeImages
from tests.unit.runner.server.api.test_jobs import JOB, ME, REFERENCE, Site, error
from tests.unit.runner.server.api.test_rollouts import Place

MATRIX = JOB + "matrix: {values: {seed: [1, 2, 3]}, at_a_time: 2}\n"
SWEEP = JOB + "sweep: {parameters: {seed: [1, 2, 3]}, metric: loss, stop: {rungs: [50]}}\n"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Place(tmp_path)
    yield site
    site.service.daemon.stop()


def revision(site: Site, job_id: str) -> Revision:
    row = site.service.store.get(job_id)
    assert row is not None
    return parse_revision(row.revision)


def listed(site: Site, query: str) -> list[str]:
    return [job["name"] for job in site.ask("GET", f"/jobs?{query}").json()["jobs"]]


def lines(site: Site, text: str, **more: Any) -> list[str]:
    found: list[str] = site.submit(text, shown="job.yaml", **more).json()["error"]["lines"]
    return found


def limited(site: Site, monkeypatch: pytest.MonkeyPatch, quotas: Quotas) -> None:
    """Give the site quotas, however its settings say so."""
    snapshot = type(site.service.daemon).admission_snapshot

    def with_quotas(daemon: Any) -> Snapshot:
        return replace(snapshot(daemon), config=SchedulerConfig(quotas=quotas))

    monkeypatch.setattr(type(site.service.daemon), "admission_snapshot", with_quotas)
    context = site.service.daemon.context
    rules = replace(context.site, rules=SchedulerConfig(quotas=quotas))
    monkeypatch.setattr(site.service.daemon, "context", replace(context, site=rules))


# --- what a job file names


def test_what_a_job_file_names_and_is_not_there_is_told_together(site: Site) -> None:
    text = JOB + "profile: none-such\nmounts: [{source: gone, target: /data/x}]\npolicy: none-such\n"
    assert [line.split("; ")[0] for line in lines(site, text)] == [
        'job.yaml:3:10: profile: there is no profile "none-such"',
        f"job.yaml:4:19: mounts[0].source: {site.directory}/gone: does not exist",
        'job.yaml:5:9: policy: there is no policy "none-such"',
    ]


def test_what_this_machine_has_not_is_told_together(site: Site) -> None:
    text = "workload: {kind: imu_stream, data: watch}\nresources: {cpus: 99}\nimage: none-such\n"
    assert [line.split("; ")[0] for line in lines(site, text)] == [
        'job.yaml:1:36: workload.data: the data set "watch" is not prepared',
        "job.yaml:2:19: resources.cpus: asks for 99",
        'job.yaml:3:8: image.name: "none-such" is not offered here',
    ]


@pytest.mark.parametrize("own", [True, False])
def test_any_image_is_for_ones_own_daemon(site: Site, monkeypatch: pytest.MonkeyPatch, *, own: bool) -> None:
    monkeypatch.setitem(site.service.settings.__dict__, "system_wide", not own)
    monkeypatch.setattr(privileges, "acts_for_root", lambda: True)
    answer = site.submit(f"{JOB}image: {REFERENCE}\n", shown="job.yaml")
    [line] = lines(site, f"{JOB}image: torchimg\n")
    told = 'image.name: "torchimg" is not offered here; there are auto, ours; '
    if own:
        assert answer.status_code == 201
        assert line.endswith(f"{told}any other image is written with its tag, such as torchimg:latest")
        return
    refused = f'"{REFERENCE}" is not offered here; there are auto, ours; '
    step = f'ask the operator to offer it (allowed_images: {{NAME: "{REFERENCE}"}})'
    assert answer.json()["error"]["lines"] == [f"job.yaml:3:8: image.name: {refused}{step}"]
    assert line.endswith(f"{told}ask the operator (allowed_images)")


def test_any_image_that_fits_a_pattern_of_the_operator(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(allowed_images={"ngc": "nvcr.io/nvidia/*", "ours": "site/ours:1"})
    monkeypatch.setattr(site.service.live, "value", settings)
    monkeypatch.setattr(privileges, "acts_for_root", lambda: True)
    assert site.submit(f"{JOB}image: {REFERENCE}\n").status_code == 201
    for image in ("ngc", "nvcr.io/other/pytorch:1", "lab/own:1"):
        [line] = lines(site, f"{JOB}image: {image}\n")
        assert f'image.name: "{image}" is not offered here; there are auto, nvcr.io/nvidia/*, ours' in line


class Engine(FakeImages):
    """An engine with two images, one of which declares a volume, and a registry with one."""

    def pin(self, reference: str, pull: PullPolicy) -> str:
        if reference == "lab/elsewhere:1" and pull != "never":
            return "lab/elsewhere@sha256:2"
        return super().pin(reference, pull)

    def resolve(self, reference: str) -> str:
        if reference == "lab/volume:1":
            raise ImageRefused(f"image {reference}: declares the volume /data; build it without")
        if reference == "lab/silent:1":
            raise Unavailable("the engine does not answer")
        return super().resolve(reference)


@pytest.mark.parametrize(
    ("image", "fact"),
    [
        ("lab/gone:1", "image lab/gone:1: is not in the engine"),
        ("lab/volume:1", "image lab/volume:1: declares the volume /data; build it without"),
        (
            "{name: lab/gone:1, pull: never}",
            "image lab/gone:1: is not in the engine; docker pull lab/gone:1",
        ),
        (
            "ours",
            (
                "image site/ours:1: is not in the engine; docker pull site/ours:1"
                "; ask the operator (allowed_images)"
            ),
        ),
    ],
)
def test_an_image_that_cannot_run_is_refused_on_submission(
    site: Site, monkeypatch: pytest.MonkeyPatch, image: str, fact: str
) -> None:
    monkeypatch.setattr(privileges, "acts_for_root", lambda: False)
    looking = replace(site.service, images=Engine())
    submission = Submission(str(site.directory / "job.yaml"), f"{JOB}image: {image}\n".encode())
    with pytest.raises(FileError) as raised:
        looking.submission.submit(Caller(ME, os.getgid()), submission)
    assert [line.split(": ", 1)[1] for line in raised.value.lines] == [f"image.name: {fact}"]


@pytest.mark.parametrize(
    ("image", "pinned"),
    [
        ("lab/there:1", "sha256:1"),
        ("{name: lab/there:1, pull: never}", "sha256:1"),
        ("lab/elsewhere:1", "lab/elsewhere@sha256:2"),
        ("lab/silent:1", None),
        ("{name: lab/silent:1, pull: never}", None),
        ("auto", None),
    ],
)
def test_a_revision_keeps_the_image_that_a_tag_named_on_submission(
    site: Site, monkeypatch: pytest.MonkeyPatch, image: str, pinned: str | None
) -> None:
    monkeypatch.setattr(privileges, "acts_for_root", lambda: False)
    images = Engine()
    images.offered["lab/there:1"] = "sha256:1"
    looking = replace(site.service, images=images)
    submission = Submission(str(site.directory / "job.yaml"), f"{JOB}image: {image}\n".encode())
    made = looking.submission.submit(Caller(ME, os.getgid()), submission)
    revision = parse_revision(made.revision)
    assert revision.image == pinned
    waits = any("its registry does not answer" in each for each in looking.submission.warnings(revision))
    assert waits == (pinned is None and image != "auto")


def test_any_image_is_refused_where_jobs_are_plain_processes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privileges, "acts_for_root", lambda: False)
    lacking = replace(site.service, host_processes=HostProcesses("/bin/python", lambda _: True, "no engine"))
    submission = Submission(str(site.directory / "job.yaml"), f"{JOB}image: {REFERENCE}\n".encode())
    with pytest.raises(FileError, match=r"image\.name: jobs are plain processes here; give the daemon a con"):
        lacking.submission.submit(Caller(ME, os.getgid()), submission)


def test_a_built_in_workload_is_refused_where_processes_have_no_torch(site: Site) -> None:
    lacking = replace(site.service, host_processes=HostProcesses("/bin/python", lambda _: False, "no engine"))
    submission = Submission(str(site.directory / "job.yaml"), JOB.encode())
    with pytest.raises(FileError, match=r"workload\.kind: causal_lm needs torch, which /bin/python lacks"):
        lacking.submission.submit(Caller(ME, os.getgid()), submission)
    assert listed(site, "all=1") == []


def test_packages_of_a_built_in_workload_are_refused_where_jobs_are_processes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostUsers, "path_problem", lambda *_, **__: None)
    there = replace(site.service, host_processes=HostProcesses("/bin/python", lambda _: True, "no engine"))
    (site.directory / "tokens.json").write_text("{}")
    text = JOB.replace("data:", "tokenizer: tokens.json, data:") + "image: {requirements: [tokenizers]}\n"
    submission = Submission(str(site.directory / "job.yaml"), text.encode())
    fact = r"image\.requirements: causal_lm runs with /bin/python here, without a container; install them"
    with pytest.raises(FileError, match=fact):
        there.submission.submit(Caller(ME, os.getgid()), submission)
    assert listed(site, "all=1") == []


def test_a_dockerfile_whose_own_base_is_replaced_is_warned_about(site: Site) -> None:
    (site.directory / "Dockerfile").write_text("ARG BASE=debian:12\nFROM ${BASE}\n")
    site.submit()
    accepted = revision(site, "1")

    def told(**image: str) -> list[str]:
        changed = accepted.job.image.model_copy(update={"dockerfile": "Dockerfile", **image})
        job = accepted.job.model_copy(update={"image": changed})
        there = site.service.submission.warnings(accepted.model_copy(update={"job": job}))
        return [each for each in there if "BASE" in each]

    fact = "BASE is the image of the job here; name yours in image.base, or behind FROM"
    assert told() == [f"Dockerfile:1:1: ARG BASE=debian:12: {fact}"]
    assert told(base="debian:12") == told(dockerfile="gone") == []


def test_a_built_in_workload_is_told_that_its_user_cannot_read_the_interpreter(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: HostUsers, who: User, path: Path, kind: str) -> str | None:
        return f"closed to {who.uid}" if (str(path), kind) == ("/root/venv/bin/python", "file") else None

    monkeypatch.setattr(HostUsers, "path_problem", closed)
    processes = HostProcesses("/root/venv/bin/python", lambda _: True, None)
    there = replace(site.service, host_processes=processes)
    site.submit()
    [warning] = there.submission.warnings(revision(site, "1"))
    assert warning.startswith("will not start: it runs as uid ")
    assert "which cannot read /root/venv/bin/python; the operator installs" in warning


def test_a_plain_process_is_told_that_it_has_no_targets_of_mounts(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostUsers, "path_problem", lambda *_, **__: None)
    there = replace(site.service, host_processes=HostProcesses("/bin/python", lambda _: True, None))
    site.submit()
    accepted = revision(site, "1")
    mount = MountEntry(source="/srv/data", target="/data/w")
    mounted = accepted.model_copy(update={"job": accepted.job.model_copy(update={"mounts": (mount,)})})
    [warning] = there.submission.warnings(mounted)
    assert warning.startswith("mounts: a plain process has no /data/w; ")
    assert there.submission.warnings(accepted) == ()


def test_packages_that_a_job_would_not_find_are_refused() -> None:
    processes = HostProcesses("/root/venv/bin/python", lambda _: True, None, "/root")
    told = processes.packages_problem()
    assert told is not None
    assert "/root is closed to you; the operator installs the runner with a Python outside of it" in told
    assert HostProcesses("/usr/bin/python3", lambda _: True, None).packages_problem() is None


# --- matrices


def test_a_matrix_makes_jobs_with_ids_in_order_that_know_of_each_other(site: Site) -> None:
    site.submit()
    answer = site.submit(MATRIX)
    assert answer.status_code == 201
    assert [(job["id"], job["name"]) for job in answer.json()["jobs"]] == [
        ("2", "job-1"),
        ("3", "job-2"),
        ("4", "job-3"),
    ]
    assert answer.json()["job"]["id"] == "2"
    sweeps = [revision(site, job_id).sweep for job_id in "234"]
    assert [(s.id, s.values, s.number, s.count, s.at_a_time) for s in sweeps if s] == [
        ("2", {"seed": 1}, 1, 3, 2),
        ("2", {"seed": 2}, 2, 3, 2),
        ("2", {"seed": 3}, 3, 3, 2),
    ]
    assert revision(site, "1").sweep is None
    (said,) = [event["text"] for event in site.ask("GET", "/events?job=3").json()["events"]][:1]
    assert said.endswith("(2 of 3 of its matrix)")


def test_a_matrix_sent_twice_makes_its_jobs_once(site: Site) -> None:
    answers = [site.submit(MATRIX, token="a" * 32).json()["jobs"] for _ in range(2)]
    assert [[job["id"] for job in jobs] for jobs in answers] == [["1", "2", "3"]] * 2


def test_who_submits_for_one_job_gets_the_first_of_a_matrix(site: Site) -> None:
    row = site.service.submission.submit(
        Caller(ME, os.getgid()), Submission(str(site.directory / "job.yaml"), MATRIX.encode())
    )
    assert (row.job.id, row.name) == ("1", "job-1")


def test_one_wrong_value_refuses_the_whole_matrix(site: Site) -> None:
    assert lines(site, JOB + "matrix: {values: {resources.cpus: [1, 99, 2]}}") == [
        "job.yaml:3:39: resources.cpus: asks for 99; there are 4"
    ]
    assert listed(site, "all=1") == []


def test_the_jobs_of_a_matrix_are_found_by_any_of_them_by_its_name_and_by_label(site: Site) -> None:
    site.submit()
    site.submit(MATRIX, name="rate")
    every = ["rate-1", "rate-2", "rate-3"]
    assert [listed(site, f"sweep={ref}") for ref in ("2", "4", "rate-2", "rate")] == [every] * 4
    assert error(site.ask("GET", "/jobs?sweep=1")) == (404, "not_found", "1: is not a job of a matrix")
    with pytest.raises(NotFound, match="nobody: there is no job"):
        site.service.queries.sweep(Caller(ME, os.getgid()), "nobody")
    assert listed(site, "label=seed") == ["rate-3", "rate-2", "rate-1"]
    assert (listed(site, "label=seed%3D2"), listed(site, "label=seed%3D9")) == (["rate-2"], [])


OF_RATE = "rate: is a matrix of 3 jobs, and no newer job has that name; runner list --sweep rate"


@pytest.mark.parametrize("question", ["", "/wait?timeout=0", "/log", "/why"])
def test_who_asks_for_one_job_by_the_name_of_a_matrix_is_told_what_it_is(site: Site, question: str) -> None:
    site.submit(MATRIX, name="rate")
    assert error(site.ask("GET", f"/jobs/rate{question}")) == (404, "not_found", OF_RATE)


@pytest.mark.parametrize("question", ["", "/wait?timeout=0", "/log", "/why"])
def test_the_name_of_an_older_job_or_of_other_users_does_not_mean_them_instead_of_ones_matrix(
    site: Site, question: str
) -> None:
    for uid in (ME, 4711, 4712):
        site.submit(name="rate", uid=uid)
    site.submit(MATRIX, name="rate")
    assert error(site.ask("GET", f"/jobs/rate{question}")) == (404, "not_found", OF_RATE)
    site.submit(name="rate")
    assert site.ask("GET", f"/jobs/rate{question}").is_success


@pytest.mark.parametrize(
    ("verb", "body"),
    [("hold", {}), ("release", {}), ("restart", {"from": "scratch"}), ("signal", {"signal": "USR1"})],
)
def test_nothing_is_done_to_one_job_by_a_name_that_means_a_matrix(
    site: Site, verb: str, body: dict[str, str]
) -> None:
    for uid in (ME, 4711):
        site.submit(name="rate", uid=uid)
    site.ask("POST", "/jobs/1/cancel")
    site.until("finished")
    site.submit(MATRIX, name="rate")
    assert error(site.ask("POST", f"/jobs/rate/{verb}", body)) == (404, "not_found", OF_RATE)


def test_a_name_that_only_looks_like_that_of_a_matrix_is_none(site: Site) -> None:
    site.submit(name="rate-1")
    assert "there is no job of that id or name" in error(site.ask("GET", "/jobs/rate"))[2]


def test_a_dry_run_names_every_job_of_a_matrix(site: Site) -> None:
    said = site.submit(MATRIX, dry_run=True).json()
    assert said["jobs"] == [{"name": f"job-{n}", "values": {"seed": n}} for n in (1, 2, 3)]
    assert (said["job"]["job"]["name"], said["spec"]["seed"]) == ("job-1", 1)
    assert listed(site, "all=1") == []


def test_a_matrix_is_no_change_of_one_job_and_a_change_leaves_a_job_in_its_matrix(site: Site) -> None:
    assert isinstance(site, Place)
    site.submit(MATRIX)
    site.until("running")
    wrong = site.change(MATRIX, shown="job.yaml", job="1")
    assert error(wrong)[2].startswith("job.yaml:3:1: matrix: stands for 3 jobs; write the values of one")
    site.apply(JOB + "seed: 1\npriority: 9\n", job="1")
    changed = revision(site, "1")
    assert (changed.job.priority, changed.sweep and changed.sweep.number) == (9, 1)


# --- dependencies


def test_names_mean_the_newest_job_of_the_owner_and_ids_are_taken_as_they_are(site: Site) -> None:
    for name in ("prepare", "prepare", "evaluate"):
        site.submit(name=name)
    site.submit(
        JOB + "queue: {after: [prepare, {job: evaluate, condition: failed}, {job: '1', condition: any}]}"
    )
    assert revision(site, "4").after == (
        ("2", DependencyCondition.OK),
        ("3", DependencyCondition.FAILED),
        ("1", DependencyCondition.ANY),
    )


def test_the_name_of_a_matrix_means_all_its_jobs(site: Site) -> None:
    site.submit(MATRIX, name="rate")
    site.submit(JOB + "queue: {after: [rate]}")
    assert revision(site, "4").after == tuple((job_id, DependencyCondition.OK) for job_id in "123")
    site.submit(JOB + "queue: {after: [{job: rate, condition: failed}], on_unmet: wait}")
    failing = revision(site, "5")
    assert failing.after == tuple((job_id, DependencyCondition.ANY) for job_id in "123")
    assert failing.one_failed == (("1", "2", "3"),)


def test_a_name_of_a_job_and_of_a_matrix_means_the_newer_of_the_two(site: Site) -> None:
    site.submit(name="rate")
    site.submit(MATRIX, name="rate")
    site.submit(JOB + "queue: {after: [rate]}")
    assert [job_id for job_id, _ in revision(site, "5").after] == ["2", "3", "4"]
    site.submit(name="rate")
    site.submit(JOB + "queue: {after: [rate]}")
    assert [job_id for job_id, _ in revision(site, "7").after] == ["6"]


def test_a_job_whose_name_ends_as_the_first_of_a_matrix_hides_no_other(site: Site) -> None:
    for name in ("rate", "rate-1"):
        site.submit(name=name)
    site.submit(JOB + "queue: {after: [rate]}")
    assert [job_id for job_id, _ in revision(site, "3").after] == ["1"]


def test_jobs_that_do_not_exist_are_refused_at_their_places(site: Site) -> None:
    site.submit(name="theirs", uid=4321)
    fact = "no such id, and none of yours has that name"
    assert lines(site, JOB + "queue:\n  after: [theirs, {job: '77'}]") == [
        f'job.yaml:4:11: queue.after[0].job: there is no job "theirs": {fact}',
        f'job.yaml:4:25: queue.after[1].job: there is no job "77": {fact}',
    ]
    assert site.submit(JOB + "queue: {after: ['1']}").status_code == 201  # by id, it may be anybody's
    given = {"after": [{"job": "nobody"}]}
    assert lines(site, JOB, instead=given) == [f'job.yaml: --after: there is no job "nobody": {fact}']


def test_a_job_that_could_never_start_is_refused_with_what_would_do(site: Site) -> None:
    site.submit(name="broken")
    site.ask("POST", "/jobs/broken/cancel", {})
    site.until("finished")
    site.submit(name="works")
    site.until("running", "2")
    site.complete("2")
    site.until("finished", "2")
    cancelled = 'job 1 (broken) has been cancelled already, and ok waits for success; "1:any" would be met'
    succeeded = 'job 2 (works) has succeeded already, and failed waits for a failure; "2:any" would be met'
    text = JOB + "queue:\n  after: [broken, {job: '2', condition: failed}]"
    for more in ({}, {"dry_run": True}):
        assert lines(site, text, **more) == [
            f"job.yaml:4:11: queue.after[0].job: {cancelled}",
            f"job.yaml:4:25: queue.after[1].job: {succeeded}",
        ]
    assert lines(site, JOB, instead={"after": [{"job": "broken"}]}) == [f"job.yaml: --after: {cancelled}"]
    met = "queue: {after: [{job: broken, condition: any}, works]}"
    assert site.submit(JOB + met).status_code == 201
    assert site.submit(JOB + "queue: {after: [{job: broken, condition: failed}]}").status_code == 201


def test_a_change_after_which_a_job_could_never_start_is_refused_as_a_submission_is(site: Site) -> None:
    assert isinstance(site, Place)
    site.submit(name="broken")
    site.ask("POST", "/jobs/broken/cancel", {})
    site.until("finished")
    site.submit(name="runs")
    site.until("running", "runs")
    hopeless = JOB + "queue:\n  after: [broken]"
    fact = 'job 1 (broken) has been cancelled already, and ok waits for success; "1:any" would be met'
    for dry_run in (False, True):
        refused = error(site.change(hopeless, job="runs", dry_run=dry_run))
        assert refused[0] == 422
        assert refused[2].endswith(f"job.yaml:4:11: queue.after[0].job: {fact}")
    met = JOB + "queue: {after: [{job: broken, condition: any}]}"
    assert site.change(met, job="runs").status_code == 200


def test_a_change_after_which_jobs_would_wait_for_each_other_is_refused(site: Site) -> None:
    assert isinstance(site, Place)
    for name, after in (
        ("first", ""),
        ("second", "queue: {after: [first]}"),
        ("third", "queue: {after: ['2']}"),
    ):
        site.submit(JOB + after, name=name)
    site.until("running")
    refused = site.change(JOB + "queue: {after: [third]}", job="first")
    circle = "circular dependency: 1 waits for 3 waits for 2 waits for 1; leave one out"
    assert error(refused)[:2] == (403, "refused")
    assert error(refused)[2].endswith(f"job.yaml:3:9: queue.after: {circle}")
    assert error(site.change(JOB + "queue: {after: ['2']}", job="second"))[2].endswith(
        "2 waits for 2; leave one out"
    )


@pytest.mark.parametrize("several", [MATRIX, SWEEP])
def test_the_file_of_a_job_alone_leaves_it_in_its_matrix_or_sweep(site: Site, several: str) -> None:
    assert isinstance(site, Place)
    site.submit(several + "queue: {not_before: '2099-01-01T00:00:00Z'}\n", name="rate")
    detail: Any = site.job("2")
    before, alone = revision(site, "2"), job_file(detail)
    differ = JobDiff(site.service)
    file = Submission(str(site.directory / "job.yaml"), alone.encode())
    assert differ.json(*differ.sides(Caller(ME, ME), "2", None, file))["changes"] == []
    answer = site.apply(f"{alone}\npriority: 60\n", job="2")
    assert [each["field"] for each in answer["changes"]] == ["priority"]
    after = revision(site, "2")
    assert (after.job.priority, after.sweep, after.job.sweep) == (60, before.sweep, before.job.sweep)


def test_a_change_reads_no_other_job_while_everybody_waits(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait for thousands, directly or by way of others."""
    assert isinstance(site, Place)
    here, found = local(), set[str]()
    run, find = Controller.run_exclusively, SqliteStore.get

    def run_exclusively(self: Controller, work: Callable[[], object]) -> object:
        def alone() -> object:
            here.is_alone = True
            try:
                return work()
            finally:
                here.is_alone = False

        return run(self, alone)

    def get(self: SqliteStore, job_id: str) -> JobRow | None:
        found.update([job_id] if getattr(here, "is_alone", False) else ())
        return find(self, job_id)

    later = "queue: {not_before: '2099-01-01T00:00:00Z'}"
    for name, queue in (("first", later), ("second", "queue: {after: [first]}"), ("other", later)):
        site.submit(JOB + queue, name=name)
    monkeypatch.setattr(Controller, "run_exclusively", run_exclusively)
    monkeypatch.setattr(SqliteStore, "get", get)
    assert site.change(JOB + "queue: {after: [second]}", job="other").status_code == 200
    assert found <= {"3"}


def test_a_canary_waits_for_nothing_that_its_job_has_waited_for(site: Site) -> None:
    site.submit(name="prepare")
    site.submit(MATRIX + "queue: {after: [prepare], not_before: 2020-01-01T00:00:00Z}\n")
    row = site.service.store.get("2")
    assert row is not None
    trial = canary_revision(revision(site, "2"), row.job)
    assert (trial.after, trial.sweep) == ((), None)
    assert (trial.job.queue.after, trial.job.queue.not_before) == ((), None)


def test_a_canary_of_a_candidate_pauses_at_no_rung(site: Site) -> None:
    site.submit(SWEEP)
    row = site.service.store.get("2")
    assert row is not None
    assert checkpoint_plan(revision(site, "2").job, 60).pauses == (50,)
    assert checkpoint_plan(canary_revision(revision(site, "2"), row.job).job, 60).pauses == ()


# --- refusals


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("queue: {priority_class: best}", "4:9: queue.priority_class: there is no class best; there are"),
        ("resources: {gpus: 1}\ndevices: {model: B200}", "4:18: devices.model: no device matches"),
        ("resources: {gpus: 1}\ndevices: {memory: 80GiB}", "4:19: devices.memory: no device matches"),
        ("resources: {gpus: 1}\ndevices: {capability: '10.0'}", "4:23: devices.capability: no device"),
        ("resources: {gpus: 1}\ndevices: {kind: slice}", "4:17: devices.kind: no device matches"),
    ],
)
def test_what_no_device_and_no_class_of_the_site_can_do_is_refused_with_what_there_is(
    site: Site, more: str, words: str
) -> None:
    (line,) = lines(site, JOB + more.replace("queue: {p", "queue:\n  p").replace("best}", "best"))
    assert words.replace("4:9", "4:19") in line


def test_every_refusal_is_told_at_once(site: Site) -> None:
    text = (
        JOB
        + "resources: {gpus: 1, cpus: 99}\nqueue: {priority_class: best, after: [nobody]}\nimage: theirs\n"
    )
    assert [line.split(": ")[1] for line in lines(site, text)] == [
        "resources.cpus",
        "queue.priority_class",
        "queue.after[0].job",
        "image.name",
    ]


def test_a_quota_of_devices_is_a_mistake_of_the_file_and_others_are_refusals(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(site, monkeypatch, Quotas(user=Quota(devices=0, jobs=0)))
    assert "job.yaml:3:19: resources.gpus: user " in lines(site, JOB + "resources: {gpus: 1}")[0]
    status, kind, words = error(site.submit())
    assert (status, kind) == (403, "refused")
    assert words.startswith(f"{site.directory}/job.yaml: user ")
    assert words.endswith("may have no job running; ask the operator of this machine")


def test_a_full_queue_refuses_a_matrix_as_a_whole(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(site, monkeypatch, Quotas(user=Quota(queued=2)))
    status, _, words = error(site.submit(MATRIX))
    assert (
        status,
        words.endswith("waiting, and has 0; this submission has 3; runner list --mine has them"),
    ) == (
        403,
        True,
    )
    assert listed(site, "all=1") == []
    assert site.submit().status_code == 201


def test_the_queue_is_counted_once_more_when_jobs_are_accepted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two submissions may be looked at side by side; they are accepted one after the other."""
    limited(site, monkeypatch, Quotas(group=Quota(queued=3)))
    submission = Submission(str(site.directory / "job.yaml"), MATRIX.encode())
    caller = Caller(ME, os.getgid())
    found = site.service.submission.resolve_all(caller, submission)
    drafts = site.service.submission.drafts(submission, found)
    limited(site, monkeypatch, Quotas(group=Quota(queued=1)))
    owner = site.service.submission.owner(caller)
    with pytest.raises(
        Refused, match=f"group {team(os.getgid())} may have 1 job waiting, and has 0; this submission has 3"
    ):
        site.service.daemon.run_exclusively(
            lambda: site.service.submission._accept(caller, owner, drafts, submission)
        )


# --- how large job files may be

BALLAST = ", ".join(f"V{number}: {'x' * 3000}" for number in range(100))
LARGE = f"{JOB}environment: {{{BALLAST}}}\n"


def allow(site: Site, monkeypatch: pytest.MonkeyPatch, **limits: int | None) -> None:
    """Give the site limits of bytes."""
    for name, value in limits.items():
        monkeypatch.setitem(site.service.settings.__dict__, name, value)  # frozen for everybody else


def test_the_jobs_of_a_matrix_share_one_text(site: Site) -> None:
    """Three hundred jobs of a file of 0.9 MB made the store 262 MiB larger and the daemon 570 MB."""
    totals, store = site.service.daemon.scheduler.jobs.totals, site.service.store
    owner = site.service.submission.owner(Caller(ME, os.getgid()))
    matrix = f"{LARGE}matrix: {{values: {{seed: {list(range(20))}}}}}\n"
    assert site.submit(matrix).status_code == 201
    rows = [row for number in range(1, 21) if (row := store.get(str(number))) is not None]
    assert len({id(row.text.shared) for row in rows}) == 1
    assert [parse_revision(row.revision).job.seed for row in rows] == list(range(20))
    assert [(sweep.id, sweep.number) for row in rows if (sweep := parse_revision(row.revision).sweep)] == [
        ("1", number) for number in range(1, 21)
    ]
    assert totals.job_file_bytes(owner.name) < 1.1 * len(LARGE)


def test_a_matrix_of_large_differences_is_refused_before_it_is_made(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(site, monkeypatch, submission_bytes=500_000)
    values = ", ".join(f"{letter}{'x' * 30_000}" for letter in "abcdefghijklmnopqrst")
    matrix = f"{JOB}matrix: {{values: {{environment.A: [{values}]}}}}\n"
    status, kind, words = error(site.submit(matrix))
    assert (status, kind) == (403, "refused")
    assert "its jobs (20) make more than " in words
    assert listed(site, "all=1") == []
    assert site.submit(LARGE).status_code == 201


def test_the_job_files_of_one_users_unfinished_jobs_are_limited(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = site.service.daemon.scheduler.jobs.totals
    owner = site.service.submission.owner(Caller(ME, os.getgid()))
    allow(site, monkeypatch, job_file_bytes_per_user=700_000)
    assert site.submit(LARGE).status_code == 201
    assert site.submit(LARGE).status_code == 201
    assert 600_000 < totals.job_file_bytes(owner.name) < 700_000
    words = error(site.submit(LARGE))[2]
    assert "of job files, and has " in words
    site.ask("POST", "/jobs/2/cancel", {})
    site.until("finished", "2")
    assert site.submit(LARGE).status_code == 201


def test_jobs_that_are_cancelled_at_once_fill_no_disk_with_their_files(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(site, monkeypatch, job_file_bytes_per_user=400_000)
    number = 1
    while (answer := site.submit(f"{LARGE}labels: {{number: '{number}'}}\n")).status_code == 201:
        site.ask("POST", f"/jobs/{number}/cancel", {})
        site.until("finished", str(number))
        number += 1
        assert number < 13
    status, kind, words = error(answer)
    assert (status, kind) == (403, "refused")
    assert "may store 390.6 KiB of job files an hour, and has stored much more" in words
    assert number > 8


def test_an_operator_may_lift_the_limits(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(site, monkeypatch, job_file_bytes_per_user=None, submission_bytes=None)
    matrix = f"{LARGE}matrix: {{values: {{seed: {list(range(120))}}}}}\n"
    assert site.submit(matrix).status_code == 201


# --- options beside the file


def test_options_take_the_place_of_what_the_file_says(site: Site) -> None:
    site.submit(name="prepare")
    given = {
        "priority_class": "urgent",
        "after": [{"job": "prepare", "condition": "any"}],
        "not_before": "2030-01-31T18:00:00+01:00",
        "priority": 7,
    }
    site.submit(JOB + "queue: {priority_class: best, after: [nobody]}\npriority: 3", instead=given)
    found = revision(site, "2")
    assert (found.job.queue.priority_class, found.job.priority) == ("urgent", 7)
    assert found.after == (("1", DependencyCondition.ANY),)
    assert str(found.job.queue.not_before) == "2030-01-31 18:00:00+01:00"
    site.submit(MATRIX, instead={"priority": 8})
    assert {revision(site, job_id).job.priority for job_id in "345"} == {8}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"priority": 101}, "--priority: must be a whole number from 0 to 100, not 101"),
        ({"not_before": "noon"}, "--not-before: must be a time such as"),
        ({"not_before": "9999-12-31T23:59:59-14:00"}, "--not-before: must be in the years 2000 to 9000, not"),
        ({"not_before": "2030-01-31T18:00:00"}, "--not-before: needs an offset from UTC"),
        ({"after": [{"job": "a", "condition": "soon"}]}, "--after: "),
        ({"after": [{"job": "a"}, {"job": "a"}]}, '--after: "a" is listed twice'),
        ({"priority_class": "most urgent"}, "--class: must be at most 63 letters"),
        ({"priority_class": "best"}, "job.yaml: --class: there is no class best"),
        ({"colour": "red"}, "body.instead.colour: Extra inputs"),
    ],
)
def test_wrong_options_are_told_by_their_names(site: Site, given: dict[str, Any], words: str) -> None:
    status, _, message = error(site.submit(shown="job.yaml", instead=given))
    assert (status, message.startswith(words)) == (422, True), message


@pytest.mark.parametrize(("option", "value"), [("not_before", "2030-01-31T18:00:00Z"), ("priority", 7)])
def test_options_beside_a_schedule_are_refused_for_they_would_be_forgotten(
    site: Site, option: str, value: object
) -> None:
    text = JOB + "schedule: {cron: '@daily'}"
    (line,) = lines(site, text, instead={option: value})
    assert line.endswith(": goes with a job; what a schedule submits is in its file alone")


@pytest.mark.parametrize(
    ("model", "accelerator"), [("", "cuda"), ("h100", "cuda"), ("MI300", "rocm"), ("[MI300, H100]", "cuda")]
)
def test_the_accelerator_is_that_of_the_models_that_are_asked_for(model: str, accelerator: str) -> None:
    devices = (GpuDevice("a", "nvidia", "NVIDIA H100"), GpuDevice("b", "amd", "AMD Instinct MI300X"))
    text = JOB + f"resources: {{gpus: 1}}\n{f'devices: {{model: {model}}}' if model else ''}"
    assert accelerator_of(parse_job(text.encode(), Path("job.yaml")), devices) == accelerator


def test_a_job_is_charged_to_the_primary_group_of_whoever_submits_it(site: Site) -> None:
    site.submit()
    site.submit(uid=4321)
    assert revision(site, "1").team == team(os.getgid())
    assert (team(987654), revision(site, "2").team) == ("987654", "4321")


def test_the_jobs_of_a_matrix_are_of_one_age(site: Site) -> None:
    site.submit(MATRIX)
    rows = [site.service.store.get(job_id) for job_id in ("1", "2")]
    assert len({row.submitted_at for row in rows if row is not None}) == 1


def test_a_job_cannot_be_called_by_a_number(site: Site) -> None:
    assert lines(site, JOB, name="12") == [
        "--name: must not be a number, because job ids are numbers; add a letter"
    ]


def test_a_dry_run_of_a_matrix_shows_the_texts_that_the_jobs_get(site: Site) -> None:
    text = JOB + "matrix: {values: {environment.LR: [1e-3, 1.10], seed: [1]}}\n"
    found = [job["values"] for job in site.submit(text, dry_run=True).json()["jobs"]]
    assert found == [{"environment.LR": "1e-3", "seed": 1}, {"environment.LR": "1.10", "seed": 1}]


# --- weights of earlier jobs

BEGINS = "workload: {{kind: causal_lm, data: stdlib, init_from: {written}}}\n{more}"


def begins(written: str, more: str = "") -> str:
    return BEGINS.format(written=written, more=more)


def test_weights_of_a_job_are_those_of_its_id(site: Site) -> None:
    for name in ("base", "base"):
        site.submit(name=name)
    site.submit(begins("job/base/best", "queue: {after: [{job: base, condition: any}]}"))
    found = revision(site, "3")
    assert found.init == InitialWeights(job="2", kind="best")
    attempts = (found.spec("3", Attempt(1, 1), in_container=each).workload for each in (True, False))
    assert [plan.init_from for plan in attempts if isinstance(plan, TrainingPlan)] == ["job/2/best"] * 2


def test_a_directory_of_weights_must_be_there(site: Site) -> None:
    (site.directory / "models").mkdir()
    site.submit(begins("models"))
    assert revision(site, "1").init == InitialWeights(path=str(site.directory / "models"))
    assert lines(site, begins("nowhere")) == [
        f"job.yaml:1:54: workload.init_from: {site.directory}/nowhere: does not exist"
    ]


def test_weights_that_cannot_be_there_are_refused_with_what_would_do(site: Site) -> None:
    site.submit(name="base")
    site.submit(MATRIX, name="rate")
    site.submit(name="theirs", uid=4321)
    begin = "job.yaml:1:54: workload.init_from: "
    assert lines(site, begins("job/nobody/best")) == [
        f'{begin}there is no job "nobody": no such id, and none of yours has that name'
    ]
    assert lines(site, begins("job/rate/best")) == [
        f'{begin}"rate" is a matrix of 3 jobs; name one, such as rate-1'
    ]
    assert lines(site, begins("job/5/final")) == [
        f"{begin}job 5 (theirs) is not yours; ask its owner for a copy, and name the directory"
    ]
    [said] = lines(site, begins("job/base/final"))
    waits = "add it to queue.after, so that this job waits for it"
    assert said == f'{begin}job 1 (base) has not ended; {waits}: after: ["base"]'
    site.ask("POST", "/jobs/1/cancel", {})
    site.until("finished")
    assert lines(site, begins("job/base/final")) == [
        f"{begin}job 1 (base) has not succeeded, so it has no finished model; job/base/best may be there"
    ]
    assert site.submit(begins("job/base/best")).status_code == 201


def test_a_script_in_the_code_that_loses_a_failure_is_warned_about(site: Site) -> None:
    code = site.directory / "code"
    code.mkdir()
    (code / "pipe.sh").write_text("cd .\npython x.py | tee log\n")
    text = "workload: {kind: program, command: [bash, %s], code: code}\n"
    answer = site.submit(text % "pipe.sh").json()
    assert [each for each in answer["warnings"] if "pipe.sh" in each] == [
        "pipe.sh:2: a failure before a '|' counts as a success; write set -o pipefail above it"
    ]
    assert not any("sh" in each for each in site.submit(text % "none.sh").json()["warnings"])
