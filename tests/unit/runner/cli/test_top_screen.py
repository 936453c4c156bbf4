"""One screen of ``runner top``, for every size of it."""

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runner.cli import top_screen
from runner.cli.table import Cell, Style, Table, cut, text_width
from runner.cli.top_screen import format_screen

AT = "2030-01-01T12:00:00.000Z"
NOW = 1893499200.0
GIB = 1024**3
Json = dict[str, Any]
HOLDER = {"id": "7", "name": "train", "owner": "ada"}


def a_device(number: int = 0, **facts: object) -> Json:
    return {
        "uuid": f"GPU-{number:08}", "name": f"GPU-{number}", "vendor": "nvidia",
        "model": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 * GIB, "util": 87.0, "memory": 0.5,
        "state": "allocated", "reason": "", "jobs": [HOLDER],
    } | facts  # fmt: skip


def a_job(job_id: str = "7", **facts: object) -> Json:
    return {
        "id": job_id, "name": "train", "owner": "ada", "state": "running", "outcome": None, "why": "",
        "since": "2030-01-01T10:55:00.000Z", "submitted_at": AT, "attempt": 2, "attempts_max": 20,
        "priority": 50, "gpus": ["GPU-00000000"], "labels": {}, "started_at": "2030-01-01T11:00:00.000Z",
        "progress": {"phase": "train", "time": NOW - 2, "step": 10, "total_steps": 400,
                     "items_per_s": 5123.0, "data_wait": 0.83},
        "disk": {"read_per_s": 3.5e6, "written_per_s": 12e3},
        "util": 12.0, "memory": 0.5, "wants": {"gpus": 1, "cpus": 4.0, "memory_bytes": GIB},
    } | facts  # fmt: skip


def a_waiting_job(job_id: str = "8", **facts: object) -> Json:
    why = "waits for 2 linked GPUs: 1 free, GPU-3 used by a foreign process (pid 4121, uid 1007, python)"
    starts = "2030-01-01T14:20:00.000Z"
    return a_job(job_id, state="queued", why=why, progress=None, starts_at=starts) | facts


def an_overview(**facts: object) -> Json:
    return {
        "at": AT, "executor": "docker", "cpus": {"lent": 4.0, "total": 64.0},
        "memory_bytes": {"lent": GIB, "total": 512 * GIB}, "devices": [a_device()], "jobs": [a_job()],
        "queue": [a_waiting_job()], "queue_length": 1,
    } | facts  # fmt: skip


def plain(overview: Json, width: int = 400, height: int = 0) -> str:
    return "\n".join(format_screen(overview, (width, height)))


def row(overview: Json, beginning: str, **etas: float) -> list[str]:
    """Return the cells of the line that begins with a word."""
    lines = format_screen(overview, (400, 0), etas=etas)
    [line] = [each for each in lines if each.split()[:1] == [beginning]]
    return re.split(r" {2,}", line.strip())


def test_the_first_line_counts_what_there_is() -> None:
    devices = [a_device(0), a_device(1, state="free"), a_device(2, state="free")]
    head = plain(an_overview(devices=devices)).splitlines()[0]
    assert head == (
        "12:00:00 UTC  3 devices: 1 allocated, 2 free  1 running, 1 waiting  cpus 4/64  memory 1/512 GiB"
    )


def test_a_device_is_shown_with_how_busy_it_is_and_who_has_it() -> None:
    cells = row(an_overview(devices=[a_device(temperature_c=61, power_w=412.4)]), "GPU-0")
    assert cells == [
        "GPU-0", "H100 80GB HBM3", "#########.", "87%", "40/80 GiB", "61 C", "412 W", "allocated", "7", "ada",
    ]  # fmt: skip


def test_a_device_out_of_service_says_why_where_its_owner_would_be() -> None:
    device = a_device(state="foreign", reason="pid 4121, uid 1007, python", jobs=[])
    assert row(an_overview(devices=[device]), "GPU-0")[-3:] == ["foreign", "-", "pid 4121, uid 1007, python"]


def test_a_stranger_on_a_lent_device_stands_beside_its_owner() -> None:
    stranger = {"pid": 4121, "foreign": True, "user": "bob", "program": "python"}
    last = row(an_overview(devices=[a_device(processes=[stranger])]), "GPU-0")[-1]
    assert last == "ada; foreign process (pid 4121, bob, python)"


def test_a_device_that_several_jobs_share_names_them_all() -> None:
    other = {**HOLDER, "id": "9"}
    assert row(an_overview(devices=[a_device(jobs=[HOLDER, other])]), "GPU-0")[-2:] == ["7, 9", "ada"]


def test_memory_in_bytes_goes_before_a_share() -> None:
    assert "20/80 GiB" in row(an_overview(devices=[a_device(used_bytes=20 * GIB)]), "GPU-0")
    assert "50%" in row(an_overview(devices=[a_device(memory_bytes=None)]), "GPU-0")
    assert "20/80 GiB" not in plain(an_overview(devices=[a_device(memory=None)]))


def test_a_job_is_shown_with_its_pace_what_it_waits_for_and_what_it_fills() -> None:
    assert row(an_overview(), "7", **{"7": 3600.0}) == [
        "7", "train", "ada", "running", "2", "10/400", "5.1k", "83%", "12%", "50%",
        "3.5M/12.0k", "1h", "1h", "GPU-0",
    ]  # fmt: skip


def test_a_job_that_does_something_else_than_training_says_what() -> None:
    job = a_job(progress={"phase": "compile", "time": NOW, "step": 0})
    assert row(an_overview(jobs=[job]), "7")[3] == "compile"


def test_the_pace_of_a_silent_job_is_not_shown_as_if_it_were_one() -> None:
    job = a_job(progress={"phase": "train", "time": NOW - 300, "step": 10, "items_per_s": 5.0})
    assert row(an_overview(jobs=[job]), "7")[3:8] == ["silent 5m", "2", "10", "-", "-"]


def test_what_is_wrong_with_a_job_stands_beside_where_it_is() -> None:
    job = a_job(alarm="devices busy 12% of the last 10m: input-bound")
    assert row(an_overview(jobs=[job]), "7")[-1] == "GPU-0: devices busy 12% of the last 10m: input-bound"


def test_what_runs_comes_before_what_does_not() -> None:
    states = ("held", "preparing", "starting", "stopping", "running")
    jobs = [a_job(str(number), state=state) for number, state in enumerate(states)]
    table = top_screen.make_job_table(an_overview(jobs=jobs), NOW)
    assert [cells[0].text for cells in table.rows] == ["4", "3", "2", "1", "0"]


def test_a_waiting_job_is_shown_with_its_reason_and_the_estimate() -> None:
    cells = row(an_overview(), "8")
    assert cells[6:] == ["in 2h20m", a_waiting_job()["why"]]
    assert row(an_overview(queue=[a_waiting_job(starts_at=None)]), "8")[6] == "-"


def test_an_empty_machine_says_so() -> None:
    text = plain(an_overview(devices=[], jobs=[], queue=[], queue_length=0))
    said = [line for line in text.splitlines()[1:] if line]
    assert said == ["no GPUs: jobs run on cpus", "no job is running", "nobody waits"]


def test_what_does_not_fit_is_counted() -> None:
    devices = [a_device(number) for number in range(30)]
    lines = format_screen(an_overview(devices=devices, queue_length=500), (200, 24))
    assert len(lines) <= 24
    assert any(re.fullmatch(r"and \d+ more", line) for line in lines)
    assert "and 499 more" in lines


def test_a_narrow_screen_does_without_what_is_missed_least() -> None:
    wide, narrow = (top_screen.make_device_table(an_overview()).narrowed(width) for width in (200, 70))
    assert set(wide.columns) - set(narrow.columns) == {"POWER", "TEMP", "MODEL"}
    assert all(len(row) == len(narrow.columns) for row in narrow.rows)
    assert top_screen.make_job_table(an_overview(), NOW).narrowed(1).columns[-1] == "ON"


def tables(*counts: int, more: int = 0) -> list[Table]:
    return [Table(("A",), ((Cell("a"),),) * count, more) for count in counts]


def test_a_short_table_leaves_its_room_to_a_long_one() -> None:
    assert top_screen._share_lines(tables(2, 3, 100), 3 + 3 + 4 + 2 + 20) == [2, 3, 20]
    assert top_screen._share_lines(tables(50, 50, 50), 3 + 3 * 12) == [10, 10, 10]
    assert top_screen._share_lines(tables(5, 5, 5), 4) == [0, 0, 0]


def test_what_just_fits_is_shown_whole() -> None:
    assert top_screen._share_lines(tables(8, 5, 0), 3 + 9 + 6 + 1) == [8, 5, 0]
    assert top_screen._share_lines(tables(8, 5, 4, more=3), 3 + 10 + 7 + 6) == [8, 5, 4]


def test_colours_take_no_room_and_a_plain_screen_has_none() -> None:
    painted = format_screen(an_overview(), (100, 30), Style(colour=True, blocks=True))
    bare = format_screen(an_overview(), (100, 30), Style(blocks=True))
    assert [re.sub(r"\x1b\[\d*m", "", line) for line in painted] == bare
    assert any("\x1b[31m" in line for line in painted)


def test_nothing_that_a_job_says_reaches_the_terminal_as_it_is() -> None:
    text = plain(an_overview(queue=[a_waiting_job(why="\x1b]0;evil\x07\u202e", name="a\nb")]))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "a\\nb" in text


def test_wide_characters_count_twice() -> None:
    assert text_width("模型") == 4
    assert text_width("e\u0301") == 1
    assert cut("模型x", 3) == "模"


NUMBERS = st.none() | st.floats(0, 1e7)
TEXTS = st.none() | st.text(max_size=60)


@given(
    width=st.integers(1, 250),
    height=st.integers(1, 60),
    devices=st.lists(st.builds(
        a_device, util=st.none() | st.floats(0, 100), memory=NUMBERS,
        reason=TEXTS, temperature_c=NUMBERS, power_w=NUMBERS, model=TEXTS,
    ), max_size=12),
    jobs=st.lists(st.builds(
        a_job, why=st.text(max_size=60), progress=st.none() | st.just({}),
        util=NUMBERS, memory=NUMBERS, state=st.sampled_from(("running", "held", "starting", "unheard-of")),
    ), max_size=12),
    waiting=st.lists(st.builds(a_waiting_job, why=st.text(max_size=200)), max_size=12),
)  # fmt: skip
def test_no_line_is_wider_than_the_screen_and_no_frame_higher(
    width: int, height: int, devices: list[Json], jobs: list[Json], waiting: list[Json]
) -> None:
    overview = an_overview(devices=devices, jobs=jobs, queue=waiting, queue_length=len(waiting) + 3)
    lines = format_screen(overview, (width, height))
    assert len(lines) <= height
    assert all(text_width(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)
