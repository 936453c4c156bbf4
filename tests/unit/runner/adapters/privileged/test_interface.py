"""The list of what is left for root: as the page for operators has it, and as the other part may ask it."""

import json
import re
from collections.abc import Mapping
from contextlib import nullcontext
from inspect import getmembers, isfunction
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import ValidationError

from jobs.contract import RunPaths
from runner.adapters.privileged.interface import PRIVILEGED, RunOf
from runner.base.errors import Refused
from runner.core.ports.executor import Alive, Created, Gone, Key, Unknown, Waiting
from runner.core.ports.users import User

PAGE: Final = Path(__file__).parents[5] / "provenance" / "attacks.md"
ROW: Final = re.compile(r"^\| `(\w+)` \| [^|]+ \| ((?:`\w+`(?:, )?)+) \|$", re.MULTILINE)
ANN: Final = RunOf("1", 1001, 1001)


class Recorded:
    """Both ends in one process; remembers what arrives."""

    def __init__(self, result: object = None) -> None:
        self.result, self.asked = result, list[tuple[str, Mapping[str, Any]]]()

    def exchange(self, request: bytes, given: tuple[int, ...]) -> tuple[bytes, list[int]]:
        targets = {
            name: self if each.key is None else lambda _: self for name, each in PRIVILEGED.interfaces.items()
        }
        content, _ = PRIVILEGED.do(targets, request, list(given))
        return content, []

    def __getattr__(self, name: str) -> Any:
        def method(**values: object) -> object:
            self.asked.append((name, values))
            return self.result

        return method


def test_the_page_of_attacks_lists_all_that_is_left_for_root() -> None:
    listed = {row[1]: re.findall(r"\w+", row[2]) for row in ROW.finditer(PAGE.read_text())}
    methods = {
        name: {
            method for method, _ in getmembers(interface.methods, isfunction) if not method.startswith("_")
        }
        for name, interface in PRIVILEGED.interfaces.items()
    }
    assert {name: set(operations) for name, operations in listed.items()} == methods


def test_the_paths_of_an_attempt_are_sent_as_its_numbers_alone() -> None:
    ends = Recorded(result=False)
    run = PRIVILEGED.proxy("run", ends.exchange, ANN)
    assert run.is_lineage_locked(RunPaths(Path("/etc"), 3, 2)) is False
    [(name, values)] = ends.asked
    paths = values["paths"]
    assert (name, paths.attempt, paths.lineage, paths.root) == ("is_lineage_locked", 3, 2, Path("/nowhere"))
    for attempt, lineage in ((0, 1), (1, 0), (-1, 1), (1, 2**40)):
        with pytest.raises(ValidationError):
            run.is_lineage_locked(RunPaths(Path("/etc"), attempt, lineage))


def test_a_log_of_the_caller_is_not_sent_and_a_path_of_any_bytes_is() -> None:
    ends = Recorded(result="sha256:1")
    PRIVILEGED.proxy("images", ends.exchange).ensure("cpu", Path("/etc/passwd"), "7")
    strange = Path("/data/\udcff\n")
    ends.result = Path("/pins/1-1/0")
    PRIVILEGED.proxy("pins", ends.exchange).pin(User(1001, 1001, (), ""), strange, "1-1/0")
    (_, image), (_, pin) = ends.asked
    assert (image["log"], pin["path"]) == (Path("/nowhere"), strange)


@pytest.mark.parametrize("uid", [-1, 2**32 - 1, 2**32, 2**64])
def test_a_number_that_means_no_change_is_no_user(uid: int) -> None:
    ends = Recorded()
    who = {"uid": uid, "gid": 1001, "groups": [], "name": ""}
    pin = json.dumps({"op": "pins.pin", "who": who, "path": b"/data".hex(), "name": "1-1/0"})
    with pytest.raises(Refused, match="not a request"):
        ends.exchange(pin.encode(), ())
    for key in ({"run": "1", "uid": uid, "gid": 1001}, {"run": "1", "uid": 1001, "gid": uid}):
        content = json.dumps({"op": "run.create", "key": key}).encode()
        with pytest.raises(Refused, match="not a request"):
            ends.exchange(content, ())
    assert ends.asked == []


@pytest.mark.parametrize(("kind", "asked"), [("docker", 1), ("slurm", 0)])
def test_root_submits_nothing_to_slurm_for_the_part_without_rights(kind: str, asked: int) -> None:
    ends = Recorded()
    content = json.dumps({"op": "attempts.use", "kind": kind, "instance": "i1"}).encode()
    with nullcontext() if asked else pytest.raises(Refused, match="not a request"):
        ends.exchange(content, ())
    assert len(ends.asked) == asked


def test_observations_arrive_as_what_they_are_in_their_order() -> None:
    key = Key("i", "1", 1)
    observed = (
        Created(key),
        Alive(key),
        Gone(key, 3),
        Unknown(key, "why"),
        Waiting(key, "queue"),
        Alive(key, 7),
    )
    assert PRIVILEGED.proxy("attempts", Recorded(observed).exchange).observe() == observed
