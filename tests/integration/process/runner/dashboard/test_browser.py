"""The dashboard in a real browser, over a real daemon with a job that is killed and resumes."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.daemon.service import Service, service, until

PROGRAM = """
import os, pathlib, sys, time
saved = pathlib.Path("saved")
step = int(saved.read_text()) if saved.exists() else 0
print("begins at", step, flush=True)
while True:
    step += 1
    print(f"step {step} loss {1 / step:.4f}", flush=True)
    saved.write_text(str(step))
    time.sleep(0.1)
"""

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def chromium() -> str:
    """Return the path of Debian's Chromium; without one, a laptop skips and CI fails."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("there is no chromium; scripts/test-tools provides it")
        pytest.skip("there is no chromium; scripts/test-tools provides it")
    return found


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process", cpus=8) as made:
        yield made.start()


def training(daemon: Service, name: str) -> str:
    code = daemon.root / name
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(PROGRAM)
    file = daemon.file(
        name,
        workload={"kind": "program", "command": ["/usr/bin/python3", "train.py"], "code": str(code)},
        resources={"cpus": 0.5, "memory": "256MiB"},
        progress={"pattern": r"step (?P<step>\d+) loss (?P<loss>[\d.]+)"},
        retry={"backoff": "0s"},
        labels={"note": HOSTILE},
    )
    job_id = daemon.submit(file, end="cancelled")
    daemon.reaches(job_id, "running")
    return job_id


@pytest.fixture(scope="module")
def link(daemon: Service) -> Iterator[str]:
    with daemon.typing("dash", "--no-open") as dash:
        assert dash.stdout is not None
        yield dash.stdout.readline().strip()


@pytest.fixture(scope="module")
def context(chromium: str, link: str) -> Iterator[Any]:
    """Return a browser that has opened the link, and notes what goes wrong on its pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(link)
        assert page.url.endswith("/")
        page.close()
        yield context
        browser.close()


class Watched:
    """A page, with the requests and the errors that it caused."""

    def __init__(self, context: Any, base: str) -> None:  # noqa: ANN401
        self.base = base
        self.page = context.new_page()
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    def open(self, path: str) -> Any:  # noqa: ANN401
        self.page.goto(self.base + path)
        return self.page

    def shows(self, words: str) -> None:
        self.page.get_by_text(words).first.wait_for(timeout=30_000)


@pytest.fixture
def watched(context: Any, link: str) -> Iterator[Watched]:  # noqa: ANN401
    watched = Watched(context, link.partition("/login")[0])
    yield watched
    watched.page.close()
    assert watched.errors == []
    assert watched.hosts == {watched.base.partition("//")[2]}


def test_a_job_is_watched_while_it_trains_is_killed_and_resumes(daemon: Service, watched: Watched) -> None:
    job = training(daemon, "watched")
    page = watched.open(f"/jobs/{job}")
    watched.shows("step 5 loss 0.2000")
    page.evaluate("window.sameDocument = true")
    daemon.runner("kill", job, "--signal", "KILL")
    watched.shows("attempt 2 runs")
    page.locator("#newest-decision > summary").click()
    watched.shows("wanted:")
    watched.shows("--- attempt 2 ---")
    page.locator("#life rect").nth(1).wait_for(state="attached")
    assert page.locator("#life rect").count() == 2
    assert page.evaluate("window.sameDocument") is True
    page.get_by_role("figure").first.wait_for()
    daemon.runner("cancel", job)
    watched.shows("cancelled")


def test_a_job_is_cancelled_on_its_page_after_a_question(daemon: Service, watched: Watched) -> None:
    job = training(daemon, "unwanted")
    page = watched.open(f"/jobs/{job}")
    asked: list[str] = []

    def dismiss(dialog: Any) -> None:  # noqa: ANN401
        asked.append(dialog.message)
        dialog.dismiss()

    page.once("dialog", dismiss)
    page.get_by_role("button", name="Cancel").click()
    assert asked == ["Cancel: unwanted?"]
    assert daemon.state_of(job) == "running"
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    assert daemon.ends(job)["outcome"] == "cancelled"


def test_the_log_can_be_searched(daemon: Service, watched: Watched) -> None:
    job = training(daemon, "searched")
    page = watched.open(f"/jobs/{job}")
    watched.shows("step 3 loss")
    page.locator("#log-search").fill("step 3 ")
    assert page.locator("#log mark").first.text_content() == "step 3 "
    daemon.runner("cancel", job)
    daemon.ends(job)


def test_two_curves_are_compared_and_hostile_text_does_nothing(daemon: Service, watched: Watched) -> None:
    first, second = training(daemon, "first"), training(daemon, "second")

    def drawn() -> bool:
        return all(
            len(daemon.client.get(f"/v1/jobs/{job}/curves")["curves"].get("loss", [])) > 1
            for job in (first, second)
        )

    until(drawn, "both jobs have a curve")
    page = watched.open("/jobs")
    for job in (first, second):
        page.locator(f"input[value='{job}']").check()
    page.get_by_role("button", name="Compare the chosen jobs").click()
    page.locator("figure[data-name=loss] path").nth(1).wait_for()
    assert page.locator("figure[data-name=loss] .legend li").count() == 2
    page = watched.open(f"/jobs/{first}")
    watched.shows(HOSTILE)
    daemon.runner("cancel", first, second)


def test_pages_are_usable_without_a_mouse_and_with_a_screen_reader(daemon: Service, watched: Watched) -> None:
    from axe_playwright_python.sync_playwright import Axe

    job = training(daemon, "read")
    for path in (
        "/",
        "/jobs",
        f"/jobs/{job}",
        "/compare",
        f"/compare?job={job}",
        "/schedules",
        "/usage",
        "/policy",
    ):
        page = watched.open(path)
        found = Axe().run(page).response["violations"]
        serious = [
            (each["id"], each["nodes"][0]["html"])
            for each in found
            if each["impact"] in {"serious", "critical"}
        ]
        assert serious == [], path
    page = watched.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    daemon.runner("cancel", job)
    daemon.ends(job)


@pytest.mark.parametrize("width", [360, 3840])
def test_no_page_is_wider_than_its_window(daemon: Service, watched: Watched, width: int) -> None:
    job = training(daemon, f"wide-{width}")
    watched.page.set_viewport_size({"width": width, "height": 800})
    for path in ("/", "/jobs", f"/jobs/{job}", f"/compare?job={job}"):
        page = watched.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    daemon.runner("cancel", job)
    daemon.ends(job)


def test_a_page_comes_back_when_the_daemon_does(daemon: Service, context: Any, link: str) -> None:  # noqa: ANN401
    watched = Watched(context, link.partition("/login")[0])  # its errors are those of the network
    page = watched.open("/")
    page.get_by_text("Live", exact=True).wait_for()
    for _ in range(3):
        daemon.kill()
        page.get_by_text("The daemon does not answer.").wait_for(timeout=30_000)
        with suppress(AssertionError):
            daemon.start()
        page.get_by_text("Live", exact=True).wait_for(timeout=30_000)
    job = training(daemon, "afterwards")
    page.get_by_role("link", name="afterwards").wait_for(timeout=30_000)
    assert page.get_by_role("link", name="afterwards").get_attribute("href") == f"/jobs/{job}"
    daemon.runner("cancel", job)
    page.close()


def test_the_link_is_good_for_one_browser(context: Any, link: str) -> None:  # noqa: ANN401
    stranger = context.browser.new_context()
    page = stranger.new_page()
    assert page.goto(link).status == 403
    assert page.goto(link.partition("/login")[0]).status == 401
    stranger.close()


def test_a_socket_of_a_shared_server_is_carried_to_the_browser(daemon: Service, tmp_path: Path) -> None:
    import http.client
    import socket

    path = tmp_path / "dash.sock"
    with daemon.typing("dash", "--no-open", "--listen", str(path)) as dash:
        assert dash.stdout is not None
        forward, link = dash.stdout.readline(), dash.stdout.readline().strip()
        assert f"-L 8433:{path}" in forward
        connection = http.client.HTTPConnection("localhost:8433")
        connection.sock = socket.socket(socket.AF_UNIX)
        until(path.exists, "it listens")
        connection.sock.connect(str(path))
        connection.request("GET", link.partition(":8433")[2])
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        connection.close()
