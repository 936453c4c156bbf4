"""``runner top``: show the current state of the machine, redrawn at each change.

One thread queries the daemon; the main thread draws and reads keys.  A pipe between them wakes the main
thread, and so does a resize of the terminal.  The terminal is restored at every exit.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from runner.base.errors import RunnerError
from runner.cli.console import complain, on_terminal, say_json, takes_escapes
from runner.cli.formatting import RateEstimate
from runner.cli.parameters import as_json
from runner.cli.table import terminal_style
from runner.cli.top_screen import format_screen
from runner.client.client import Client, find_or_start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

Json = dict[str, Any]

EVERY_S: Final = 1.0
"""A screen is at most this old: utilisation changes without anything happening."""

CALM_S: Final = 0.2
"""The shortest time between two questions, whatever happens on the machine."""

PATIENCE_S: Final = 15.0

ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[2J"  # alternate screen, no cursor
LEAVE: Final = "\x1b[0m\x1b[?25h\x1b[?1049l"


@click.command()
@click.option("--once", is_flag=True, help="Print one screen and exit; the default in a pipe.")
@as_json
def top(*, once: bool, as_json: bool) -> None:
    """Show devices, jobs and the queue on a screen that is kept up to date.

    UTILISATION and MEMORY are averages of ten seconds. DATA WAIT is the share of a step spent waiting
    for the next batch. Press q or Ctrl-C to leave.
    """
    client = find_or_start(complain)
    if as_json:
        say_json(ask(client))
    elif once or not takes_escapes():
        size = (shutil.get_terminal_size().columns, 0) if on_terminal() else (10_000, 0)
        click.echo("\n".join(format_screen(ask(client), size, terminal_style())))
    else:
        Screen(client).run()


def ask(client: Client, wait_s: float = 0.0) -> Json:
    """Return an overview at the next change, or after ``wait_s``."""
    overview: Json = client.get("/v1/overview", {"wait": wait_s}, wait_s)
    return overview


class Screen:
    """The terminal while ``runner top`` uses it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._style = terminal_style()
        self._paces: dict[tuple[str, int], RateEstimate] = {}
        self._overview: Json | None = None
        self._problem = ""
        self._left = threading.Event()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)

    def run(self) -> None:
        """Draw the overview until the user quits."""
        self._overview = ask(self._client)  # an error here is printed on the normal screen
        threading.Thread(target=self._look, name="look", daemon=True).start()
        with self._terminal():
            self._draw()
            while not self._leaves():
                self._draw()
        self._left.set()

    # --- in a separate thread

    def _look(self) -> None:
        while not self._left.wait(CALM_S):
            try:
                self._overview, self._problem = self._ask(), ""
            except RunnerError as error:
                self._problem = str(error)
                self._left.wait(EVERY_S)
            self._nudge()

    def _ask(self) -> Json:
        """Return a new overview; unlike in other commands, the daemon is not restarted."""
        import json

        target = f"/v1/overview?wait={EVERY_S}"
        answer: Json = json.loads(self._client.ask("GET", target, None, EVERY_S + PATIENCE_S).body)
        return answer

    def _nudge(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full, so a wake-up is pending
            os.write(self._wake, b".")

    # --- drawing

    def _draw(self) -> None:
        overview, columns = self._overview, shutil.get_terminal_size()
        if overview is None:
            return
        height = columns.lines - 1 if self._problem else columns.lines
        lines = format_screen(overview, (columns.columns, height), self._style, self._etas(overview))
        if self._problem:
            lines = [
                *lines,
                *[""] * (height - len(lines)),
                f"{self._problem}; trying again"[: columns.columns],
            ]
        # Lines overwrite the old ones: clearing the screen first would flicker.
        sys.stdout.write("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
        sys.stdout.flush()

    def _etas(self, overview: Json) -> dict[str, float]:
        """Return the estimated remaining seconds of each job with a known rate."""
        running = {(job["id"], job["attempt"]): job for job in overview["jobs"] if job.get("progress")}
        self._paces = {key: self._paces.get(key) or RateEstimate() for key in running}
        found = {}
        for key, job in running.items():
            self._paces[key].see(job["progress"])
            if (eta_s := self._paces[key].eta_s(job["progress"])) is not None:
                found[key[0]] = eta_s
        return found

    # --- keys and the terminal

    def _leaves(self) -> bool:
        """Wait for a key, a new answer or a resize; return whether the user quits."""
        listened = [self._woken, *([sys.stdin.fileno()] if sys.stdin.isatty() else [])]
        ready, _, _ = select.select(listened, [], [], EVERY_S)
        if self._woken in ready:
            with suppress(BlockingIOError):
                while os.read(self._woken, 4096):
                    pass
        if set(ready) <= {self._woken}:
            return False
        keys = os.read(sys.stdin.fileno(), 64)
        return not keys or bool(set(keys) & set(b"qQ\x03\x04"))

    @contextmanager
    def _terminal(self) -> Iterator[None]:
        """Set up the terminal and restore it at the end, and also while the process is stopped (SIGTSTP)."""
        before = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None
        signals = {
            number: signal.getsignal(number)
            for number in (signal.SIGWINCH, signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        }

        def take() -> None:
            if before is not None:
                tty.setcbreak(sys.stdin)
            _write(ENTER)

        def give_back() -> None:
            _write(LEAVE)
            if before is not None:
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

        def stop_for_a_while(_number: int, _frame: FrameType | None) -> None:
            give_back()
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # returns when the shell continues this process
            signal.signal(signal.SIGTSTP, stop_for_a_while)
            take()
            self._nudge()

        def leave(number: int, _frame: FrameType | None) -> None:
            raise SystemExit(128 + number)

        signal.signal(signal.SIGWINCH, lambda *_: self._nudge())
        signal.signal(signal.SIGTSTP, stop_for_a_while)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent may have ignored it
        signal.signal(signal.SIGTERM, leave)
        signal.signal(signal.SIGHUP, leave)
        try:
            take()
            with suppress(KeyboardInterrupt):  # Ctrl-C quits
                yield
        finally:
            give_back()
            for number, known in signals.items():
                signal.signal(number, known)


def _write(text: str) -> None:
    """Write past the buffer: this is called by a signal handler, which may interrupt a flush."""
    with suppress(OSError, RuntimeError):  # the terminal is gone; the buffer is being flushed
        sys.stdout.flush()
    with suppress(OSError):
        os.write(sys.stdout.fileno(), text.encode())
