from io import StringIO
from typing import TYPE_CHECKING, cast

from rich.console import Console

from runner.cli.live_progress import LiveView
from tests.fakes.daemon.api import a_job

if TYPE_CHECKING:
    from runner.client.types import JobDetail


def written(console: Console) -> str:
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def test_the_live_line_moves_and_what_stays_stands_above_it() -> None:
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system=None)
    preparing = cast("JobDetail", {**a_job(), "state": "preparing"})
    queued = cast("JobDetail", {**a_job(), "state": "queued", "why": "waits for 1 GPU"})
    with LiveView(console) as view:
        view.build("Step 3/9 : RUN [x]\x1b[2J")
        view.look(preparing, None)
        view._progress.refresh()
        assert r"building the image: Step 3/9 : RUN [x]\x1b[2J" in written(console)
        view.look(queued, None)
        view._progress.refresh()
        assert "train: queued: waits for 1 GPU" in written(console)
        view.look(cast("JobDetail", a_job()), 70.0)
        view._progress.refresh()
        view.say("attempt 1 ended [x]")
    assert "step 10/100  5.1k items/s  loss 2.5000  eta 1m10s" in written(console)
    assert "attempt 1 ended [x]\n" in written(console).replace("\r", "")
