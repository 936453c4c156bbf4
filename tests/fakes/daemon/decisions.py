"""Rulings of a policy about an end, for tests that do not ask one."""

from datetime import timedelta

from runner.core.job.attempt import ExitDecision, Start
from runner.core.policy.adjustments import Overrides
from runner.core.policy.decision import Action
from runner.core.policy.history import History
from runner.core.policy.model import Verb

ONCE = History(attempts=1, charged=1)


def ruling(
    verb: Verb,
    reason: str = "so it is",
    *,
    start: Start | None = None,
    turned: Overrides | None = None,
    history: History = ONCE,
) -> ExitDecision:
    """Return a ruling; another attempt waits for 5 s."""
    verdict = Action(verb, "rule", reason, delay=timedelta(seconds=5))
    return ExitDecision(verdict, history, start or Start(), turned or Overrides())


AGAIN = ruling(Verb.RESUME, "resume from step 40: exception")
DONE = ruling(Verb.FINISH, "finish: completed")
ENOUGH = ruling(Verb.GIVE_UP, "give up: exception")
WAIT = ruling(Verb.HOLD, "hold: no valid checkpoint")
