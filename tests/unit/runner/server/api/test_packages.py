"""Jobs with packages, over a real daemon and store; the resolver is a fake."""

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from runner.agent.package_locks import PackagesPending, PendingLock
from runner.base import privileges
from runner.base.errors import Unavailable
from runner.files.revision import parse_revision
from runner.server.api.packages import pending_json, with_packages
from runner.server.packages import needed_images
from tests.fakes.engine.packages import lock_text
from tests.unit.runner.server.api.test_jobs import Site
from tests.unit.runner.server.api.test_rollouts import Place

JOB = "workload: {kind: program, command: [python, train.py]}\n"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.packages.gate.set()
    site.service.daemon.stop()


def lock_of(site: Site, job_id: str = "1") -> str | None:
    row = site.service.store.get(job_id)
    assert row is not None
    return parse_revision(row.revision).lock


def refusal(site: Site, image: str) -> list[str]:
    answer = site.submit(f"{JOB}image: {image}\n", shown="job.yaml")
    assert answer.status_code == 422, answer.text
    lines: list[str] = answer.json()["error"]["lines"]
    return lines


def test_a_build_that_fails_is_told_at_the_line_that_asks_for_it_or_for_what_needs_it(site: Site) -> None:
    (site.directory / "requirements.txt").write_text("six\nfoo==1.0\nouter>=2\n")
    site.packages.missing = {"foo==1.0": "foo 1.0: its build fails: error: no gcc"}
    assert refusal(site, "{requirements: requirements.txt}") == [
        "requirements.txt:2: foo==1.0: foo 1.0: its build fails: error: no gcc"
    ]
    site.packages.missing = {"outer>=2": "inner 1.0, which outer needs: its build fails: error: no gcc"}
    (site.directory / "requirements.txt").write_text("six\n\nouter>=2\n")
    [line] = refusal(site, "{requirements: requirements.txt}")
    assert line.startswith("requirements.txt:3: outer>=2: inner 1.0, which outer needs: ")


def test_the_words_of_tools_are_no_progress(tmp_path: Path) -> None:
    pending = PendingLock("1", tmp_path / "log")
    assert pending_json(pending) == {"text": "resolving packages"}
    pending.log.write_text("packages: x is built\n   + wheel==1\n  copying x\n")
    assert pending_json(pending) == {"text": "packages: x is built"}


def test_a_job_keeps_the_lock_of_its_requirements_and_runs_with_them(site: Site) -> None:
    (site.directory / "requirements.txt").write_text("tqdm>=4  # a bar\n-r more.txt\n-c limits.txt\n")
    (site.directory / "more.txt").write_text("six\n-r requirements.txt\n")
    (site.directory / "limits.txt").write_text("idna<4\n")
    assert site.submit(f"{JOB}image: {{requirements: requirements.txt}}\n").status_code == 201
    site.until("running")
    assert lock_of(site) == lock_text("tqdm>=4", "six")
    [(request, _)] = site.packages.asked
    assert request.constraints == ("idna<4",)
    assert site.packages.built == [(lock_text("tqdm>=4", "six"), "sha256:cpu")]
    assert site.job()["image"] == "sha256:cpu-with-packages"


def test_a_job_without_requirements_has_no_lock(site: Site) -> None:
    site.submit(JOB)
    site.until("running")
    assert lock_of(site) is None
    assert site.packages.asked == []


def test_a_job_gets_the_packages_of_its_trackers_and_of_no_other(site: Site) -> None:
    text = (
        f"{JOB}image: {{requirements: [tqdm]}}\ntrack: [tensorboard, {{mlflow: 'file:///job/home/runs'}}]\n"
    )
    assert site.submit(text).status_code == 201
    assert lock_of(site) == lock_text("tqdm", "tensorboardX", "mlflow-skinny")
    training = "workload: {kind: causal_lm, data: stdlib}\ntrack: [tensorboard]\n"
    assert site.submit(training).status_code == 201
    assert lock_of(site, "2") == lock_text("tensorboardX")


def test_a_tracker_whose_package_cannot_be_had_is_told_at_its_field(site: Site) -> None:
    site.packages.missing["tensorboardX"] = "tensorboardx was not found and you require tensorboardx"
    answer = site.submit(f"{JOB}track: [tensorboard]\n", shown="job.yaml")
    assert answer.json()["error"]["lines"] == [
        'job.yaml:2:1: track: "tensorboardX": tensorboardx was not found and you require tensorboardx'
    ]


def test_a_tracker_out_of_reach_is_told_before_anything_is_resolved(site: Site) -> None:
    answer = site.submit(f"{JOB}track: [{{mlflow: 'file:///srv/runs'}}]\n", shown="job.yaml")
    [line] = answer.json()["error"]["lines"]
    assert line.startswith(
        'job.yaml:2:1: track: "/srv/runs" is not a directory that the job can write; mount'
    )
    assert site.packages.asked == []


def test_the_base_is_one_that_the_operator_offers(site: Site) -> None:
    assert site.submit(f"{JOB}image: {{requirements: [tqdm], base: ours}}\n").status_code == 201
    [(request, _)] = site.packages.asked
    assert request.base == "sha256:ours"
    [line] = refusal(site, "{requirements: [tqdm], base: theirs}")
    assert line.startswith('job.yaml:2:37: image.base: "theirs" is not offered here; there are auto, ours')


@pytest.mark.parametrize("own", [True, False])
def test_the_base_is_any_image_in_ones_own_daemon(
    site: Site, monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    monkeypatch.setattr(privileges, "acts_for_root", lambda: not own)
    text = "image: {requirements: [tqdm], base: lab/own:1}\n"
    if own:
        assert site.submit(f"{JOB}{text}").status_code == 201
        assert [request.base for request, _ in site.packages.asked] == ["sha256:ours"]
        return
    answer = site.submit(f"{JOB}{text}")
    assert answer.status_code == 422
    assert 'image.base: "lab/own:1" is not offered here' in answer.json()["error"]["lines"][0]


def test_equal_requirements_are_resolved_once(site: Site) -> None:
    text = f"{JOB}image: {{requirements: [tqdm]}}\nmatrix: {{values: {{seed: [1, 2, 3]}}}}\n"
    assert site.submit(text).status_code == 201
    assert site.submit(text).status_code == 201
    assert len(site.packages.asked) == 1


def test_a_requirement_that_cannot_be_had_is_told_at_its_line(site: Site) -> None:
    (site.directory / "requirements.txt").write_text("six\n\nnosuch  # typo\n")
    site.packages.missing["nosuch"] = "nosuch was not found and you require nosuch"
    assert refusal(site, "{requirements: requirements.txt}") == [
        "requirements.txt:3: nosuch: nosuch was not found and you require nosuch"
    ]
    assert refusal(site, "{requirements: [six, nosuch]}") == [
        'job.yaml:2:29: image.requirements[1]: "nosuch": nosuch was not found and you require nosuch'
    ]


def test_of_two_requirements_of_a_package_the_one_is_blamed_whose_version_is_named(site: Site) -> None:
    (site.directory / "requirements.txt").write_text("tqdm\nsix>1\n")
    reason = "there is no version of tqdm==0.0.1 and you require tqdm==0.0.1"
    site.packages.missing["tqdm == 0.0.1"] = reason
    assert refusal(site, "{requirements: [-r requirements.txt, tqdm == 0.0.1]}") == [
        f'job.yaml:2:45: image.requirements[1]: "tqdm == 0.0.1": {reason}'
    ]
    (site.directory / "requirements.txt").write_text("tqdm == 0.0.1\ntqdm\n")
    assert refusal(site, "{requirements: [tqdm, -r requirements.txt]}") == [
        f"requirements.txt:1: tqdm == 0.0.1: {reason}"
    ]


def test_a_reason_that_names_no_requirement_is_told_at_the_field(site: Site) -> None:
    site.packages.missing["six"] = "the moon is full"
    assert refusal(site, "{requirements: [six]}") == ["job.yaml:2:9: image.requirements: the moon is full"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            "six\n--index-url https://x\n",
            "requirements.txt:2: --index-url https://x: the operator chooses",
        ),
        ("-e .\n", "requirements.txt:1: -e .: .: has no pyproject.toml"),
        ("six\n-r gone.txt\n", "requirements.txt:2: -r gone.txt: gone.txt: does not exist"),
        (
            "git+https://x/y\n",
            "requirements.txt:1: git+https://x/y: packages come from the operator's",
        ),
        (
            "x @ git+https://x/y\n",
            "requirements.txt:1: x @ git+https://x/y: packages come from the operator's",
        ),
        (
            "./y.whl\n",
            "requirements.txt:1: ./y.whl: packages come from the operator's",
        ),
        ("six seven\n", "requirements.txt:1: six seven: is not a requirement such as tqdm>=4: "),
        ("\xff", "requirements.txt: is not UTF-8 text"),
    ],
)
def test_files_with_what_a_job_may_not_say_are_refused(site: Site, content: str, line: str) -> None:
    (site.directory / "requirements.txt").write_bytes(content.encode("latin-1"))
    [found] = refusal(site, "{requirements: requirements.txt}")
    assert found.startswith(line)


def test_every_mistake_of_a_file_and_of_those_that_it_includes_is_told(site: Site) -> None:
    (site.directory / "requirements.txt").write_text("six six\n-r more.txt\n-e .\n-r gone.txt\n")
    (site.directory / "more.txt").write_text("git+https://x/y\n")
    assert [
        line.rpartition(": ")[0].partition(": ")[0]
        for line in refusal(site, "{requirements: requirements.txt}")
    ] == [
        "requirements.txt:1",
        "more.txt:1",
        "requirements.txt:3",
        "requirements.txt:4",
    ]
    assert refusal(site, "{requirements: [six, '-r gone.txt']}") == [
        'job.yaml:2:29: image.requirements[1]: "-r gone.txt": does not exist'
    ]


def test_a_file_of_requirements_that_is_not_there_is_told_at_its_field(site: Site) -> None:
    assert refusal(site, "{requirements: gone.txt}") == [
        "job.yaml:2:23: image.requirements: gone.txt: does not exist"
    ]


def test_the_answer_has_all_that_the_resolver_has_said(site: Site) -> None:
    site.packages.missing["six"] = "six is away"
    answer = site.submit(f"{JOB}image: {{requirements: [six]}}\n", shown="job.yaml")
    assert answer.json()["error"]["details"] == ["details of six"]


def test_too_many_files_are_refused(site: Site) -> None:
    for number in range(30):
        (site.directory / f"r{number}.txt").write_text(f"-r r{number + 1}.txt\n")
    assert refusal(site, "{requirements: r0.txt}") == ["r20.txt: includes more than 20 files"]


def test_an_image_that_cannot_be_had_is_told(site: Site) -> None:
    site.packages.broken = "many\nlines, the last of which counts"
    assert refusal(site, "{requirements: [six]}") == ["job.yaml:2:1: image: lines, the last of which counts"]


def test_an_index_that_does_not_answer_is_no_mistake_of_the_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> str:
        raise Unavailable("the index of packages does not answer: https://index.example/simple/six/")

    monkeypatch.setattr(site.packages, "resolve", away)
    answer = site.submit(f"{JOB}image: {{requirements: [six]}}\n", wait_s=30)
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert error["exit_code"] == 4
    assert error["lines"] == ["the index of packages does not answer: https://index.example/simple/six/"]
    assert site.service.store.get("1") is None


def test_a_submission_does_not_wait_longer_than_it_says(site: Site) -> None:
    site.packages.gate.clear()
    answer = site.submit(f"{JOB}image: {{requirements: [tqdm]}}\n", wait_s=0.05)
    assert answer.status_code == 202
    assert answer.json()["pending"]["text"] in {"downloading tqdm", "resolving packages"}
    assert site.service.store.get("1") is None
    site.packages.gate.set()
    assert site.submit(f"{JOB}image: {{requirements: [tqdm]}}\n", wait_s=30).status_code == 201
    assert len(site.packages.asked) == 1


def test_who_waits_is_told_although_another_one_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = PendingLock("packages-1", tmp_path / "packages-1.log")
    locks = Mock(join=lambda pending, when_done: pending.callbacks.append(when_done))

    async def run_check(_: Callable[[], None]) -> None:
        raise PackagesPending(pending)

    monkeypatch.setattr("runner.server.api.packages.run_check", run_check)
    for _ in range(2):
        with pytest.raises(PackagesPending):
            asyncio.run(with_packages(Mock(package_locks=locks), 0.01, lambda: None))
    assert len(pending.callbacks) == 2
    for tell in pending.callbacks:
        tell()


def test_other_submissions_are_answered_while_packages_are_resolved(site: Site) -> None:
    site.packages.gate.clear()
    slow = [
        threading.Thread(target=site.submit, args=(f"{JOB}image: {{requirements: [p{number}]}}\n",))
        for number in range(6)
    ]
    for thread in slow:
        thread.start()
    assert site.submit(JOB).status_code == 201
    site.packages.gate.set()
    for thread in slow:
        thread.join()


def test_a_dry_run_shows_the_lock(site: Site) -> None:
    plan = site.submit(f"{JOB}image: {{requirements: [tqdm]}}\n", dry_run=True).json()
    assert plan["job"]["lock"] == lock_text("tqdm")
    assert site.service.store.get("1") is None


def test_packages_are_for_programs(site: Site) -> None:
    text = "workload: {kind: causal_lm, data: stdlib}\nimage: {requirements: [tqdm]}\n"
    [line] = site.submit(text, shown="job.yaml").json()["error"]["lines"]
    assert line == "job.yaml:2:1: image: packages are for programs; causal_lm brings all that it needs"


def applied(site: Site, image: str) -> dict[str, Any]:
    text = f"name: job\n{JOB}image: {image}\n".encode()
    body = {"path": str(site.directory / "job.yaml"), "text_b64": base64.b64encode(text).decode()}
    answer: dict[str, Any] = site.ask("POST", "/apply", {**body, "approve": True}).json()
    assert "error" not in answer, answer
    return answer


def test_a_change_that_asks_for_the_same_keeps_the_lock_whatever_the_index_says(tmp_path: Path) -> None:
    site = Place(tmp_path)
    try:
        site.submit(f"name: job\n{JOB}image: {{requirements: [tqdm]}}\n")
        site.until("running")
        site.packages.version = "2.0"
        changes = applied(site, "{requirements: [tqdm]}\npriority: 60")
        assert [each["field"] for each in changes["changes"]] == ["priority"]
        assert lock_of(site) == lock_text("tqdm")
        changes = applied(site, "{requirements: [tqdm, six]}")["changes"]
        found = {each["field"]: (each["before"], each["after"]) for each in changes}
        assert found["image.packages.tqdm"] == ("1.0", "2.0")
        assert found["image.packages.six"] == ("-", "2.0")
    finally:
        site.service.daemon.stop()


def test_a_change_of_something_else_keeps_the_image_that_the_name_had(tmp_path: Path) -> None:
    site = Place(tmp_path)

    def image() -> str | None:
        row = site.service.store.get("1")
        assert row is not None
        return parse_revision(row.revision).image

    try:
        site.submit(f"name: job\n{JOB}image: ours\n")
        site.until("running")
        site.images.offered["site/ours:1"] = "sha256:moved"
        changes = applied(site, "ours\npriority: 60")["changes"]
        assert ([each["field"] for each in changes], image()) == (["priority"], "sha256:ours")
        changes = applied(site, "{base: ours, requirements: [tqdm]}\npriority: 60")["changes"]
        [digest] = [(each["before"], each["after"]) for each in changes if each["field"] == "image.digest"]
        assert digest == ("sha256:ours", "sha256:moved")
    finally:
        site.service.daemon.stop()


HASH = "0" * 64
"""Of every wheel of the fake."""


def test_a_wheel_without_the_hash_that_the_requirements_name_is_refused(site: Site) -> None:
    (site.directory / "r.txt").write_text(f"six --hash=sha256:{HASH}\ntqdm --hash=sha256:{'a' * 64}\n")
    [line] = refusal(site, "{requirements: r.txt}")
    assert line == f"r.txt:2: tqdm: the index has a wheel with sha256 {HASH}, which is none of those here"


def test_hashes_of_lines_for_several_pythons_are_those_of_any_of_them(site: Site) -> None:
    lines = [
        f"six==1 ; python_version < '3' --hash=sha256:{'a' * 64}",
        f"six==2 ; python_version >= '3' --hash=sha256:{HASH}",
    ]
    (site.directory / "r.txt").write_text("\n".join(lines))
    assert site.submit(f"{JOB}image: {{requirements: r.txt}}\n").status_code == 201


def test_a_lock_is_read_back(site: Site) -> None:
    (site.directory / "pylock.toml").write_text(lock_text("tqdm", version="4.1"))
    assert site.submit(f"{JOB}image: {{requirements: pylock.toml}}\n").status_code == 201
    [(request, _)] = site.packages.asked
    assert request.lines == ("tqdm==4.1",)


def test_a_lock_of_another_python_is_refused(site: Site) -> None:
    text = 'requires-python = "==3.12.*"\n' + lock_text("tqdm", version="4.1")
    (site.directory / "pylock.toml").write_text(text)
    [line] = refusal(site, "{requirements: pylock.toml}")
    assert line.startswith(
        "pylock.toml: is a lock for Python ==3.12.*, and the image has 3.11; make it again"
    )


def test_dependencies_of_a_project_are_its_requirements_in_the_versions_of_its_lock(site: Site) -> None:
    project = '[project]\nname = "p"\ndependencies = [\n  "tqdm>=4",\n  "nosuch",\n]\n'
    (site.directory / "pyproject.toml").write_text(project)
    lock = (
        '[[package]]\nname = "p"\nversion = "0"\nsource = { virtual = "." }\n'
        '[[package]]\nname = "tqdm"\nversion = "4.7"\nwheels = [{ hash = "sha256:00" }]\n'
    )
    (site.directory / "uv.lock").write_text(lock)
    site.packages.missing["nosuch"] = "there is no nosuch"
    assert refusal(site, "{requirements: pyproject.toml}") == ["pyproject.toml:5: nosuch: there is no nosuch"]
    [(request, _)] = site.packages.asked
    assert request.lines == ("tqdm>=4", "nosuch")
    assert [each.partition(" ")[0] for each in request.constraints] == ["tqdm==4.7"]


@pytest.mark.parametrize(
    ("name", "text", "fact"),
    [
        ("pyproject.toml", "[tool]\n", "pyproject.toml: has no table [project]"),
        ("pyproject.toml", "= 1", "pyproject.toml: Invalid statement"),
        ("pylock.toml", "a = 1", "pylock.toml: is not a lock: it has no packages"),
        ("pylock.toml", "[[packages]]\nversion = '1'", "pylock.toml: is not a lock: a package has no name"),
        ("pylock.toml", "requires-python = 'x'", "pylock.toml: Invalid specifier"),
    ],
)
def test_files_that_are_not_what_their_name_says_are_refused(
    site: Site, name: str, text: str, fact: str
) -> None:
    (site.directory / name).write_text(text)
    [line] = refusal(site, f"{{requirements: {name}}}")
    assert line.startswith(fact)


def test_the_images_of_unfinished_jobs_are_needed(site: Site) -> None:
    site.submit(f"{JOB}image: {{requirements: [tqdm]}}\n")
    site.until("running")
    assert site.packages.needed == [{"sha256:cpu-with-packages"}]
    assert needed_images(site.service.store) == {"sha256:cpu-with-packages"}
    site.complete()
    site.until("finished")
    assert needed_images(site.service.store) == frozenset()


def test_an_image_with_another_python_is_refused(site: Site) -> None:
    assert site.submit(f'{JOB}image: {{requirements: [tqdm], python: "3.11"}}\n').status_code == 201
    [line] = refusal(site, '{requirements: [tqdm], python: "3.12"}')
    assert line.startswith("job.yaml:2:39: image.python: is 3.12, and the image has 3.11; name a base")
    [(request, _), *_] = site.packages.asked
    assert (request.python, request.offered) == ("3.11", (("ours", "site/ours:1"),))
    site.packages.missing["six"] = "image.python: no image for it (auto has 3.11); ask the operator"
    assert refusal(site, '{requirements: [six], python: "3.12"}') == [
        "job.yaml:2:38: image.python: 3.12: no image for it (auto has 3.11); ask the operator"
    ]
    [line] = refusal(site, "{requirements: [tqdm], python: 3.12}")
    assert line.endswith('image.python: must be a version such as "3.12", not 3.12; put it in quotes')


def test_nothing_is_resolved_for_a_job_that_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.services.submission.resolve.system_refusal", lambda *_: "not on the list")
    answer = site.submit(f"{JOB}image: {{system: [sudo], requirements: [six]}}\n")
    assert answer.status_code == 403
    assert "not on the list" in answer.json()["error"]["lines"][0]
    assert site.packages.asked == []
