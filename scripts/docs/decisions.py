"""The generated part of ``provenance/decisions.md``: situations played out."""

from bench.cases.decisions import play
from bench.support.changes import table
from bench.support.held_out import HELD_OUT


def reference() -> str:
    """Return the default policy's decision in each situation, beside the end of every alternative."""
    played = play()
    fastest = sum(each.is_fastest for each in played)
    regret = sum(each.regret for each in played) / len(played)
    worse = sum(each.is_worse_than_nothing for each in played)
    unseen = play(HELD_OUT)
    right = sum(each.is_fastest for each in unseen)
    said = (
        f"The default policy chooses the fastest admissible alternative in {fastest} of {len(played)} "
        f"situations; on average its choice takes {regret:.1%} longer than the fastest, and in {worse} of "
        f"them longer than doing nothing. Of {len(unseen)} held-out situations, which were written "
        f"afterwards, it is right in {right}. `python -m bench decisions` plays them: the decision sees "
        "steps with noise and a canary, as a daemon does, takes the longer canary that is offered, and each "
        "alternative is then played out with the true speeds. The numbers are seconds to the end of the job; "
        "a dash is an alternative that is not admissible.\n"
    )
    return f"## Fifty situations\n\n{said}\n{table(played)}"
