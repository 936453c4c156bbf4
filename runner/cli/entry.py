"""Entry point of the program ``runner``: an interrupt can end it quietly before anything is imported.

Python answers an interrupt during an import with a traceback.  Until a command is invoked, an interrupt
therefore ends the process at once, as it ends programs in other languages; nothing has been asked for yet.
"""

import gc
import os
import signal
import sys


def main() -> None:
    """Load the command line and run it; the function does not return."""
    end_at_interrupts()
    gc.disable()  # what is imported stays: to look for garbage in it takes as long as some of the imports
    if sys.stdout is not None:  # else nothing is done, which main says
        fill_closed()
        if sys.argv[1:2] == ["exec"]:
            from runner.cli.plain_exec import run_plain

            run_plain(sys.argv[2:])
    from runner.cli.main import main as run

    gc.enable()
    run()


def fill_closed() -> None:
    """Put a null device where standard input or error is closed: a connection would get its number.

    What a command inside of a job writes would then be sent to the daemon.
    """
    for stream in (sys.stdin, sys.stderr):
        if stream is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free


def end_at_interrupts() -> None:
    """Let an interrupt end this process at once, unless interrupts are ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def hear_interrupts() -> None:
    """Let an interrupt raise ``KeyboardInterrupt`` from now on, after ``end_at_interrupts``."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    main()
