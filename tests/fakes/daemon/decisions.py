"""What a policy may have said about an end: rulings for tests that do not ask one."""

from datetime import timedelta

from runner.core.job.model import Ruling, Start
from runner.core.policy.decision import Verdict
from runner.core.policy.history import History
from runner.core.policy.model import Verb
from runner.core.policy.turned import Turned

ONCE = History(attempts=1, charged=1)


def ruling(
    verb: Verb,
    reason: str = "so it is",
    *,
    start: Start | None = None,
    turned: Turned | None = None,
    history: History = ONCE,
) -> Ruling:
    """Return a ruling; another attempt waits for 5 s."""
    verdict = Verdict(verb, "rule", reason, delay=timedelta(seconds=5))
    return Ruling(verdict, history, start or Start(), turned or Turned())


AGAIN = ruling(Verb.RESUME, "resume from step 40: exception")
DONE = ruling(Verb.FINISH, "finish: completed")
ENOUGH = ruling(Verb.GIVE_UP, "give up: exception")
WAIT = ruling(Verb.HOLD, "hold: no valid checkpoint")
