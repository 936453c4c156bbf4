from collections.abc import Sequence

import pytest

from bench.cases import decisions
from bench.support.changes import SITUATIONS, Offer, play, play_all
from bench.support.held_out import HELD_OUT
from runner.files.policy.load import load_named_policy
from scripts.docs.decisions import reference
from scripts.docs.page import PROVENANCE, regenerate


@pytest.mark.parametrize("situations", [SITUATIONS, HELD_OUT])
def test_the_default_policy_reaches_its_aims_in_the_situations(situations: Sequence[Offer]) -> None:
    played = decisions.play(situations)
    assert len(played) >= 40
    assert 100 * sum(each.is_fastest for each in played) / len(played) >= decisions.AIM_FASTEST
    assert 100 * sum(each.regret for each in played) / len(played) <= decisions.AIM_REGRET
    assert [each.offer.title for each in played if each.is_worse_than_nothing] == []


def test_the_situations_differ_and_ask_for_each_answer() -> None:
    titles = [each.title for each in (*SITUATIONS, *HELD_OUT)]
    assert len(set(titles)) == len(titles)
    assert {each.fastest for each in decisions.play()} == {"keep", "resume", "restart"}


def test_a_policy_that_never_changes_anything_misses_the_aims() -> None:
    played = [play_all(each, load_named_policy("strict")) for each in SITUATIONS]
    assert 100 * sum(each.is_fastest for each in played) / len(played) < decisions.AIM_FASTEST
    assert 100 * sum(each.regret for each in played) / len(played) > decisions.AIM_REGRET


def test_alternatives_are_played_step_by_step() -> None:
    offer = Offer("", 100, 60, 1.0, 2.0, saved=50, every=50, start_s=5.0, stop_s=1.0)
    assert play(offer, "keep") == 40
    assert play(offer, "resume") == 6 + 25
    assert play(offer, "restart") == 6 + 50
    evaluated = Offer(
        "", 100, 50, 1.0, 1.0, saved=50, eval_every=50, eval_now_s=20, eval_new_s=2, evaluated=0.5
    )
    assert play(evaluated, "keep") == 10 + 50 + 20
    assert play(evaluated, "resume") == 23 + 2 + 50 + 2
    blown = Offer("", 100, 60, 1.0, 2.0, saved=50, every=50, start_s=5.0, interrupted=(10.0,))
    assert play(blown, "keep") == 10 + 5 + 50


def test_the_page_shows_what_is_decided_now() -> None:
    page = (PROVENANCE / "decisions.md").read_text()
    assert regenerate(page, reference()) == page
