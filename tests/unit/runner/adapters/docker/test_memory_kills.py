"""The kills for memory of a container are what its own cgroup counts, also when that is gone."""

from pathlib import Path

import pytest

from runner.adapters.docker.memory_kills import MemoryKills

CONTAINER = "c" * 64
V1, V2 = "under_oom 0\noom_kill {}\n", "low 0\noom 9\noom_kill {}\noom_group_kill 4\n"


def counter(path: Path, text: str, kills: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.format(kills))
    return path


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (f"docker/{CONTAINER}/memory.events", V2),
        (f"system.slice/docker-{CONTAINER}.scope/memory.events", V2),
        (f"memory/docker/{CONTAINER}/memory.oom_control", V1),
        (f"memory/system.slice/docker-{CONTAINER}.scope/memory.oom_control", V1),
    ],
)
def test_the_count_is_found_where_engines_put_containers(tmp_path: Path, place: str, text: str) -> None:
    file = counter(tmp_path / place, text, 0)
    found = MemoryKills(tmp_path)
    found.watch(CONTAINER, lambda: 0)
    assert found.kills(CONTAINER) == 0
    file.write_text(text.format(2))
    assert found.kills(CONTAINER) == 2
    file.write_text("")  # as if the cgroup was gone
    assert found.kills(CONTAINER) == 2


@pytest.mark.parametrize(
    ("line", "place", "text"),
    [
        ("0::", "site/{}/memory.events", V2),
        ("4:memory:", "memory/site/{}/memory.oom_control", V1),
    ],
)
def test_an_engine_with_a_parent_of_its_own_is_asked_for_the_process(
    tmp_path: Path, line: str, place: str, text: str
) -> None:
    counter(tmp_path / "cgroup" / place.format(CONTAINER), text, 1)
    process = tmp_path / "proc" / "77" / "cgroup"
    process.parent.mkdir(parents=True)
    process.write_text(f"9:cpu:/other\n{line}/site/{CONTAINER}\n")
    found = MemoryKills(tmp_path / "cgroup", tmp_path / "proc")
    found.watch(CONTAINER, lambda: 77)
    assert found.kills(CONTAINER) == 1


def test_a_process_of_this_host_with_the_number_of_one_elsewhere_is_not_taken_for_it(tmp_path: Path) -> None:
    counter(tmp_path / "cgroup" / "user" / "memory.events", V2, 1)
    process = tmp_path / "proc" / "77" / "cgroup"
    process.parent.mkdir(parents=True)
    process.write_text("0::/user\n")
    found = MemoryKills(tmp_path / "cgroup", tmp_path / "proc")
    found.watch(CONTAINER, lambda: 77)
    assert found.kills(CONTAINER) is None


def test_a_container_that_was_never_seen_is_unknown_and_looked_for_once(tmp_path: Path) -> None:
    numbers = iter([1])
    found = MemoryKills(tmp_path, tmp_path)
    found.watch(CONTAINER)
    for _ in range(3):
        found.watch(CONTAINER, lambda: next(numbers))
    assert found.kills(CONTAINER) is None
    assert list(numbers) == []


def test_a_container_is_forgotten_with_its_descriptor(tmp_path: Path) -> None:
    counter(tmp_path / "docker" / CONTAINER / "memory.events", V2, 1)
    found = MemoryKills(tmp_path)
    for _ in range(2):
        found.watch(CONTAINER, lambda: 0)
        assert found.kills(CONTAINER) == 1
        found.forget(CONTAINER)
        assert found.kills(CONTAINER) is None
    found.forget(CONTAINER)
