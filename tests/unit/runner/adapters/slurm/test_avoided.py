"""Nodes that a job has lost attempts on."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runner.adapters.slurm.avoided import AVOIDED, MOST_NODES, AvoidedNodes, absent_nodes, node_names
from runner.adapters.slurm.commands import SlurmCommands
from runner.base.errors import Unavailable

NOW_S = 1_000_000.0
DAY_S = AVOIDED.total_seconds()


@dataclass(frozen=True, slots=True)
class SaidBySinfo(SlurmCommands):
    """Commands whose answer is known."""

    answer: str | Unavailable = ""
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def ask(self, program: str, *arguments: str, given: str | None = None) -> str:
        del given
        self.asked.append((program, *arguments))
        if isinstance(self.answer, Unavailable):
            raise self.answer
        return self.answer


def test_a_node_is_avoided_for_a_day_by_the_job_that_lost_an_attempt_there(tmp_path: Path) -> None:
    avoided = AvoidedNodes(tmp_path / "avoided.json")
    assert avoided.of("7", NOW_S) == ()
    avoided.add("7", ["node2"], NOW_S)
    avoided.add("7", ["node1", "node2"], NOW_S + 10)
    assert avoided.of("7", NOW_S + 20) == ("node1", "node2")
    assert avoided.of("8", NOW_S + 20) == ()
    assert AvoidedNodes(tmp_path / "avoided.json").of("7", NOW_S + DAY_S + 5) == ("node1",)
    assert avoided.of("7", NOW_S + DAY_S + 11) == ()


def test_a_node_that_is_lost_again_is_known_already(tmp_path: Path) -> None:
    path = tmp_path / "avoided.json"
    avoided = AvoidedNodes(path)
    avoided.add("7", ["node2"], NOW_S)
    before = path.read_bytes()
    avoided.add("7", ["node2"], NOW_S + 1)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["", "[1]", '{"7": 3}', '{"7": {"a": "x"}}', "no json"])
def test_a_file_that_is_not_ours_says_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "avoided.json"
    path.write_text(content)
    avoided = AvoidedNodes(path)
    assert avoided.of("7", NOW_S) == ()
    avoided.add("7", ["node1"], NOW_S)
    assert avoided.of("7", NOW_S) == ("node1",)


def test_of_what_a_job_writes_only_names_are_taken() -> None:
    assert node_names("node1\n--uid=0 a,b ../x\nnode1 gpu-7.site\n") == ("node1", "gpu-7.site")
    assert len(node_names(" ".join(f"n{number}" for number in range(500)))) == MOST_NODES


def test_slurm_says_which_of_some_nodes_are_lost() -> None:
    slurm = SaidBySinfo(answer="node1 idle\nnode2 down*\nnode3 alloc\nnode4 mix*\nnode5 fail\nnode2 down*\n")
    assert absent_nodes(slurm, "node[1-5]") == ("node2", "node4", "node5")
    assert slurm.asked == [("sinfo", "--noheader", "--Node", "--nodes=node[1-5]", "--format=%N %t")]


def test_without_an_answer_no_node_is_lost() -> None:
    assert absent_nodes(SaidBySinfo(answer=Unavailable("down")), "node1") == ()
