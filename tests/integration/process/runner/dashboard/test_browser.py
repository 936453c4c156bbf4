"""The dashboard in a real browser, over a real daemon with a job that is killed and resumes."""

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.fakes.daemon.service import Service, service, until
from tests.fakes.patience import patience

PROGRAM = """
import pathlib, time
here = pathlib.Path(".")
saved = sorted(here.glob("saved-*"), key=lambda each: int(each.name[6:]))
step = int(saved[-1].name[6:]) if saved else 0
print("begins at", step, flush=True)
while True:
    step += 1
    print(f"step {step} loss {1 / step:.4f}", flush=True)
    draft = here / "draft"
    draft.write_text("weights")
    saved.append(draft.rename(f"saved-{step}"))
    for old in saved[:-3]:
        old.unlink()
    saved = saved[-3:]
    time.sleep(0.1)
"""

TRIAL = """
import os, pathlib, time
rate = float(os.environ["RATE"])
for step in range(1, 6):
    print(f"step {step} loss {rate * 10 / step:.4f}", flush=True)
while os.environ["ORDER"] == "stays" and not pathlib.Path(os.environ["GO"]).exists():
    time.sleep(0.1)
print(f"step 6 loss {rate:.4f}", flush=True)
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
        checkpoint={"files": "saved-*"},
        retry={"backoff": "0s"},
        labels={"note": HOSTILE},
    )
    job_id = daemon.submit(file, end="cancelled")
    daemon.reaches(job_id, "running")
    return job_id


@dataclass(frozen=True)
class Sweep:
    """The jobs of a matrix, and the file that lets the last of them end."""

    jobs: tuple[str, ...]
    go: Path

    @property
    def page(self) -> str:
        return f"/sweeps/{self.jobs[0]}"


def sweep(daemon: Service, name: str, matrix: Mapping[str, Sequence[str]], order: str = "ends") -> Sweep:
    """Submit short trainings with every combination of some variables."""
    code, go = daemon.root / name, daemon.root / f"{name}.go"
    code.mkdir()
    (code / "trial.py").write_text(TRIAL)
    file = daemon.file(
        name,
        workload={"kind": "program", "command": ["/usr/bin/python3", "trial.py"], "code": str(code)},
        resources={"cpus": 0.5, "memory": "256MiB"},
        progress={"pattern": r"step (?P<step>\d+) loss (?P<loss>[\d.]+)"},
        environment={"ORDER": order, "GO": str(go)},
        matrix={"values": {f"environment.{variable}": values for variable, values in matrix.items()}},
        labels={"note": HOSTILE},
    )
    daemon.runner("submit", str(file))
    jobs = tuple(each["id"] for each in daemon.client.sweep(name))
    assert len(jobs) == math.prod(map(len, matrix.values()))
    return Sweep(jobs, go)


def has_numbers(daemon: Service, job: str) -> bool:
    """Return True if a job has ended and its last loss is kept."""
    points = daemon.client.get(f"/v1/jobs/{job}/curves")["curves"].get("loss", [])
    return daemon.client.job(job)["outcome"] == "succeeded" and bool(points) and points[-1][1] == 6


@pytest.fixture(scope="module")
def lines(daemon: Service) -> Sweep:
    """Return a sweep with two parameters, whose jobs have ended."""
    made = sweep(daemon, "lines", {"RATE": ["0.5", "0.01", "0.1"], "ORDER": ["in", "out"]})
    until(lambda: all(has_numbers(daemon, job) for job in made.jobs), "all jobs have a result")
    return made


@pytest.fixture(scope="module")
def points(daemon: Service) -> Sweep:
    """Return a sweep with one parameter, whose jobs have ended."""
    made = sweep(daemon, "points", {"RATE": ["0.2", "0.3"]})
    until(lambda: all(has_numbers(daemon, job) for job in made.jobs), "all jobs have a result")
    return made


@pytest.fixture(scope="module")
def pages(daemon: Service, lines: Sweep, points: Sweep) -> Iterator[tuple[str, ...]]:
    """Return every page, one of them of a job that trains."""
    job, compared = training(daemon, "shown"), "/compare?job={}&job={}".format(*lines.jobs)
    ours = ("/", "/jobs", "/compare", compared, lines.page, points.page, "/schedules", "/usage", "/policy")
    yield (*ours, f"/jobs/{job}", f"/compare?job={job}")
    daemon.runner("cancel", job)
    daemon.ends(job)


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
        page.wait_for_url(f"{link.partition('/login')[0]}/", timeout=1000 * patience())
        page.close()
        yield context
        browser.close()


class Watched:
    """A page, with the requests and the errors that it caused."""

    def __init__(self, context: Any, base: str) -> None:
        self.base = base
        self.page = context.new_page()
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    def open(self, path: str) -> Any:
        self.page.goto(self.base + path)
        return self.page

    def shows(self, words: str) -> None:
        self.page.get_by_text(words).first.wait_for(timeout=1000 * patience())


@pytest.fixture
def watched(context: Any, link: str) -> Iterator[Watched]:
    watched = Watched(context, link.partition("/login")[0])
    yield watched
    watched.page.close()
    assert watched.errors == []
    assert watched.hosts == {watched.base.split("/")[2]}


def test_a_job_is_watched_while_it_trains_is_killed_and_resumes(daemon: Service, watched: Watched) -> None:
    job = training(daemon, "watched")
    page = watched.open(f"/jobs/{job}")
    watched.shows("step 5 loss 0.2000")
    page.evaluate("window.sameDocument = true")
    daemon.runner("kill", job, "--signal", "KILL")
    watched.shows("attempt 2 runs")
    decision = page.locator("#newest-decision > summary")
    assert decision.locator("strong").text_content() == "resume"
    decision.click()
    watched.shows("wanted:")
    watched.shows("--- attempt 2 ---")
    page.locator("#life rect").nth(1).wait_for(state="attached")
    assert page.locator("#life rect").count() == 2
    assert page.evaluate("window.sameDocument") is True
    page.get_by_role("figure").first.wait_for()
    daemon.runner("cancel", job)
    watched.shows("cancelled")
    daemon.ends(job)


def test_a_job_is_cancelled_on_its_page_after_a_question(daemon: Service, watched: Watched) -> None:
    job = training(daemon, "unwanted")
    page = watched.open(f"/jobs/{job}")
    asked: list[str] = []

    def dismiss(dialog: Any) -> None:
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
    for job in (first, second):
        daemon.runner("cancel", job)
        daemon.ends(job)


def test_what_differs_between_two_jobs_stands_below_their_curves(daemon: Service, watched: Watched) -> None:
    first = training(daemon, "before")
    code = daemon.root / "before"
    (code / "train.py").write_text(PROGRAM.replace("time.sleep(0.1)", "time.sleep(0.3)"))
    file = json.loads((daemon.root / "before.yaml").read_text()) | {"name": "after"}
    second = daemon.submit(daemon.file(**file), end="cancelled")
    page = watched.open(f"/compare?job={first}&job={second}")
    lines = page.locator("#difference .diff span")
    assert lines.locator("xpath=self::*[@class='removed']").all_text_contents() == ["-    time.sleep(0.1)"]
    assert lines.locator("xpath=self::*[@class='added']").all_text_contents() == ["+    time.sleep(0.3)"]
    colours = "all => new Set(all.map(each => getComputedStyle(each).color)).size"
    # a page that is brought up to date meanwhile has replaced what was found: such an element has no colour
    until(lambda: lines.evaluate_all(colours) >= 3, "lines have colours of their own")
    for job in (first, second):
        daemon.runner("cancel", job)
        daemon.ends(job)


def test_a_sweep_is_drawn_with_an_axis_for_each_parameter_and_its_best_job(
    lines: Sweep, watched: Watched
) -> None:
    page = watched.open(lines.page)
    drawn = page.locator("svg.sweep > g:not(.axis) > path")
    assert drawn.count() == len(lines.jobs)
    assert page.locator("svg.sweep .axis .name").all_text_contents() == [
        "RATE",
        "ORDER",
        "loss",
    ]
    best = page.locator("svg.sweep .best")
    assert best.locator("title").text_content().startswith("lines-3: loss 0.01;")
    assert page.locator("tr.best th").text_content().startswith("lines-3 least loss")
    # What is drawn thickest is the best job, at the end of the axis of results.
    assert best.locator("path").evaluate("line => getComputedStyle(line).strokeWidth") == "4px"
    ends = drawn.evaluate_all("all => all.map(each => each.getPointAtLength(each.getTotalLength()).y)")
    at = best.locator("path").evaluate("line => line.getPointAtLength(line.getTotalLength()).y")
    assert at == max(ends)
    page.get_by_label("Best is").select_option("largest")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**best=largest")
    assert page.locator("tr.best th").text_content().startswith("lines-1 largest loss")


def test_a_sweep_with_one_parameter_is_drawn_as_points(points: Sweep, watched: Watched) -> None:
    page = watched.open(points.page)
    assert page.locator("svg.sweep circle").count() == len(points.jobs)
    assert page.locator("svg.sweep .best title").text_content().startswith("points-1: loss 0.2;")
    spots = page.locator("svg.sweep circle").evaluate_all("all => all.map(each => each.cx.baseVal.value)")
    assert len(set(spots)) == len(points.jobs)


def test_a_sweep_is_live_and_its_jobs_are_compared(daemon: Service, watched: Watched) -> None:
    made = sweep(daemon, "going", {"RATE": ["0.4", "0.7"]}, order="stays")
    page = watched.open(made.page)
    page.locator("svg.sweep circle").nth(1).wait_for(timeout=1000 * patience())
    page.evaluate("window.sameDocument = true")
    made.go.touch()
    page.locator("tr", has_text="going-1").get_by_text("succeeded").wait_for(timeout=1000 * patience())
    page.locator("svg.sweep .best title", has_text="loss 0.4;").wait_for(
        state="attached", timeout=1000 * patience()
    )
    assert page.evaluate("window.sameDocument") is True
    for job in made.jobs:
        page.locator(f"input[value='{job}']").check()
    page.get_by_role("button", name="Compare the chosen jobs").click()
    page.locator("figure[data-name=loss] path").nth(1).wait_for(state="attached")
    page.locator("#difference").get_by_text("environment.RATE", exact=True).wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_usable_without_a_mouse_and_with_a_screen_reader(
    watched: Watched, pages: tuple[str, ...], scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    watched.page.emulate_media(color_scheme=scheme)
    for path in pages:
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


CONTRASTS = """(selector) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((each) => each / 255);
    const [r, g, b] = parts.map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const back = light(getComputedStyle(document.body).backgroundColor);
  const ratio = (each) => (Math.max(each, back) + 0.05) / (Math.min(each, back) + 0.05);
  return [...document.querySelectorAll(selector)].map((each) => {
    const style = getComputedStyle(each);
    return ratio(light(each.tagName === "text" || each.tagName === "circle" ? style.fill : style.stroke));
  });
}"""
"""Contrasts of parts of a picture with the page, as WCAG has them; axe-core does not look into pictures."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_sweep_is_drawn_in_light_and_dark_colours(
    lines: Sweep, points: Sweep, watched: Watched, scheme: str
) -> None:
    watched.page.emulate_media(color_scheme=scheme)
    for each in (lines, points):
        page = watched.open(each.page)
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 28)"}[scheme]
        texts = page.evaluate(CONTRASTS, "svg.sweep text")
        marks = page.evaluate(CONTRASTS, "svg.sweep .best path, svg.sweep .best circle, svg.sweep .axis line")
        assert texts
        assert marks
        assert min(texts) >= 4.5
        assert min(marks) >= 3


@pytest.mark.parametrize("width", [360, 3840])
def test_no_page_is_wider_than_its_window(watched: Watched, pages: tuple[str, ...], width: int) -> None:
    watched.page.set_viewport_size({"width": width, "height": 800})
    for path in pages:
        page = watched.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_a_picture_that_is_wider_than_a_telephone_scrolls_by_itself(lines: Sweep, watched: Watched) -> None:
    watched.page.set_viewport_size({"width": 360, "height": 800})
    page = watched.open(lines.page)
    box = page.get_by_role("region", name="Picture of parameters and results")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    box.focus()
    page.keyboard.press("ArrowRight")
    until(lambda: box.evaluate("box => box.scrollLeft > 0"), "the picture is scrolled")


def test_a_page_comes_back_when_the_daemon_does(daemon: Service, context: Any, link: str) -> None:
    watched = Watched(context, link.partition("/login")[0])  # its errors are those of the network
    page = watched.open("/")
    page.get_by_text("Live", exact=True).wait_for()
    daemon.kill()
    page.get_by_text("The daemon does not answer.").wait_for(timeout=1000 * patience())
    with suppress(AssertionError):
        daemon.start()
    page.get_by_text("Live", exact=True).wait_for(timeout=1000 * patience())
    job = training(daemon, "afterwards")
    page.get_by_role("link", name="afterwards").wait_for(timeout=1000 * patience())
    place = urlsplit(link.partition("/login")[0]).path
    assert page.get_by_role("link", name="afterwards").get_attribute("href") == f"{place}/jobs/{job}"
    daemon.runner("cancel", job)
    daemon.ends(job)
    page.close()


def test_the_link_is_good_for_one_browser(context: Any, link: str) -> None:
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
        assert answer.status == 200
        assert answer.headers["Set-Cookie"].startswith("runner_dash=")
        connection.close()
