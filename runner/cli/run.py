"""``runner run``: submit a command line as a job, and follow it as ``docker run`` and ``srun`` do."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from runner.base.errors import UsageError
from runner.cli.console import INTERRUPTED, complain, details_told
from runner.cli.parameters import (
    as_json,
    check_text,
    the_class,
    the_predecessors,
    the_priority,
    the_start,
    verbose,
)
from runner.cli.placing import placed
from runner.cli.run_file import (
    CommandLine,
    Value,
    describe_left_out,
    find_other_file,
    find_package_file,
    of_option,
    relative,
    yaml_text,
)
from runner.cli.submit import show_answer
from runner.client.autostart import remote_host
from runner.client.client import Client, find_or_start
from runner.client.http import ErrorResponse

if TYPE_CHECKING:
    from click.decorators import FC

    from runner.client.types import JobSummary

F = TypeVar("F", bound=Callable[..., Any])

SHOWN: Final = "runner run"
"""The name of the generated job file in messages."""

SECRETS: Final = "~/.config/runner/secrets"
"""The directory of secrets that are named without a file."""

ANSWERS: Final = {"d": False, "detach": False, "c": True, "cancel": True}
"""Answers to Ctrl-C, and whether each cancels the job."""

MODES: Final = {"rw": False, "ro": True}
"""The last part of ``--mount``, and whether the mount is read-only."""


def mounts(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> tuple[dict[str, Value], ...]:
    """Return mounts such as ``SRC:DST`` or ``SRC:DST:rw`` as entries of the job file."""
    found = []
    for one in given:
        check_text(ctx, param, one)
        rest, colon, mode = one.rpartition(":")
        if not colon or mode not in MODES:
            rest, mode = one, "ro"
        source, colon, target = rest.rpartition(":")
        if not (colon and source and target):
            raise click.BadParameter(f"{one[:60]!r} is not SRC:DST or SRC:DST:rw", ctx, param)
        entry: dict[str, Value] = {"source": source, "target": target}
        found.append(entry if MODES[mode] else {**entry, "read_only": False})
    return tuple(found)


def variables(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Return ``KEY=VALUE`` pairs; ``KEY`` alone takes the value from the environment of the command."""
    found = {}
    for one in given:
        check_text(ctx, param, one)
        key, equals, value = one.partition("=")
        if not key:
            raise click.BadParameter(f"{one[:60]!r} has no name; write KEY=VALUE", ctx, param)
        if not equals and key not in os.environ:
            raise click.BadParameter(f"{key[:60]!r} is not set here; write {key[:60]}=VALUE", ctx, param)
        found[key] = value if equals else os.environ[key]
        check_text(ctx, param, found[key])
    return tuple(found.items())


def secrets(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Return ``NAME=FILE`` pairs; ``NAME`` alone is a file in the user's directory of secrets."""
    found = {}
    for one in given:
        check_text(ctx, param, one)
        name, equals, file = one.partition("=")
        if not name or (equals and not file):
            raise click.BadParameter(f"{one[:60]!r} is not NAME or NAME=FILE", ctx, param)
        found[name] = os.path.expanduser(file or f"{SECRETS}/{name}")
    return tuple(found.items())


def split_words(ctx: click.Context, param: click.Parameter, given: str | None) -> tuple[str, ...]:
    """Return the words of a text as a shell would split it."""
    if given is None:
        return ()
    import shlex

    try:
        return tuple(shlex.split(str(check_text(ctx, param, given))))
    except ValueError as error:
        raise click.BadParameter(f"{given[:60]!r}: {str(error).lower()}", ctx, param) from error


def texts(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return texts that are valid UTF-8."""
    return tuple(str(check_text(ctx, param, one)) for one in given)


def labels(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return ``KEY=VALUE`` pairs."""
    for one in given:
        if not one.partition("=")[0] or "=" not in one:
            raise click.BadParameter(f"{one[:60]!r} is not KEY=VALUE", ctx, param)
    return tuple((one.partition("=")[0], str(check_text(ctx, param, one)).partition("=")[2]) for one in given)


def _text(
    names: str, metavar: str, meaning: str, check: Callable[..., Any] = check_text
) -> Callable[[FC], FC]:
    """Return an option that takes one text."""
    return click.option(*names.split(), callback=check, metavar=metavar, help=meaning)


def _texts(names: str, metavar: str, meaning: str, check: Callable[..., Any] = texts) -> Callable[[FC], FC]:
    """Return an option that can be repeated."""
    return click.option(*names.split(), multiple=True, callback=check, metavar=metavar, help=meaning)


line_options: Final = (
    click.option("-g", "--gpus", type=click.IntRange(0), metavar="N", help="Whole GPUs.  [default: 0]"),
    click.option(
        "-c", "--cpus", type=float, metavar="N", help="CPU cores; 1.5 is one and a half.  [default: 1]"
    ),
    _text("-m --memory --mem", "SIZE", "Memory, for example 32G.  [default: 4G]"),
    _text("-t --time", "DURATION", "Time limit, for example 2h30m."),
    _texts("--with packages", "PKG", "A Python package, for example 'transformers>=5'; repeatable."),
    _texts("--system", "PKG", "A Debian package, for example make; repeatable."),
    _text(
        "--requirements",
        "FILE",
        "A file with Python packages.  [default: requirements.txt, pylock.toml or pyproject.toml]",
    ),
    click.option("--no-requirements", is_flag=True, help="Ignore requirements.txt and the like."),
    _text("--image", "NAME", "An image; on a shared daemon one that its operator offers."),
    _texts(
        "--mount mounts",
        "SRC:DST[:rw]",
        "Mount a file or directory below /data, read-only without :rw; repeatable.",
        mounts,
    ),
    _texts(
        "-e --env environment",
        "KEY[=VALUE]",
        "Set an environment variable, by default to its value here; repeatable.",
        variables,
    ),
    _texts(
        "--secret secrets",
        "NAME[=FILE]",
        "Mount a file as /run/secrets/NAME; default: ~/.config/runner/secrets/NAME.",
        secrets,
    ),
    _texts(
        "--secret-env secret_env",
        "NAME[=FILE]",
        "The same, and set the variable NAME to its content.",
        secrets,
    ),
    click.option(
        "--network",
        type=click.Choice(["none", "outbound"]),
        help="What the job reaches.  [default: as the operator's settings say]",
    ),
    _text("--checkpoint", "PATTERN", "What the script saves on its own, for example 'out/checkpoint-*'."),
    _text(
        "--resume-args",
        "ARGS",
        "Appended to COMMAND if there is a checkpoint, for example '--resume {newest}'.",
        split_words,
    ),
    _text("--profile", "NAME", "A performance profile."),
    the_class,
    the_priority,
    the_predecessors,
    the_start,
    _texts("--label labels", "KEY=VALUE", "Label the job; repeatable.", labels),
    _text(
        "--name",
        "TEXT",
        "The name of the job.  [default: that of the script; train and the like follow the directory]",
    ),
    _text("--code", "DIR", "The directory that the command starts in.  [default: the current one]"),
    click.option("--no-code", is_flag=True, help="Start in the run directory, without any code."),
)
"""The options that say what a command line asks for: those of ``runner run`` and ``runner shell``."""


def with_line_options(command: F) -> F:
    """Give a command the options that say what it asks for."""
    for option in reversed(line_options):
        command = option(command)
    return command


def make_line(  # noqa: PLR0913  one per option that is not a field
    command: tuple[str, ...],
    *,
    code: str | None,
    no_code: bool,
    requirements: str | None,
    no_requirements: bool,
    image: str | None,
    **fields: Any,  # noqa: ANN401  values of click
) -> CommandLine:
    """Return a command line with the values of its options; requirements beside the code are taken."""
    if requirements is not None and no_requirements:
        raise click.UsageError("--requirements and --no-requirements exclude each other")
    if code is not None and no_code:
        raise click.UsageError("--code and --no-code exclude each other")
    directory = "." if code is None else code
    if requirements is None and not (no_requirements or no_code or image):
        requirements = find_requirements(directory, command)
    return CommandLine(
        command=command, code=None if no_code else directory, requirements=requirements, image=image, **fields
    )


def find_requirements(code: str, command: tuple[str, ...] = ()) -> str | None:
    """Return the file of a code directory that names its packages and say so; None if there is none."""
    name = find_package_file(code, command)
    if name is None:
        if (other := find_other_file(code)) is not None:
            shown = os.path.normpath(os.path.join(code, other))
            said = "takes it, or says what of it can be taken"
            complain(f"packages: {shown} is left out; --requirements {shown} {said}")
        return None
    found = name if code == "." else os.path.join(code, name)
    lock = os.path.join(os.path.dirname(found), "uv.lock")
    with_lock = name == "pyproject.toml" and os.path.isfile(lock)
    told = f"{found}, in the versions of {lock}" if with_lock else found
    complain(f"packages: {told}; --no-requirements leaves them out")
    if name == "pyproject.toml":
        complain(*(f"packages: {line}" for line in describe_left_out(code)))
    return found


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, metavar="COMMAND...", type=click.UNPROCESSED)
@with_line_options
@click.option("-d", "--detach", is_flag=True, help="Print id and name, and do not follow the job.")
@click.option(
    "--dry-run", is_flag=True, help="Print what would run; --json has the engine arguments. Submit nothing."
)
@click.option(
    "--save", callback=check_text, metavar="FILE", help="Also write the job file that says the same."
)
@click.option(
    "--retries",
    type=click.IntRange(0, 999),
    metavar="N",
    help="Further attempts that count, at most.  [default: as the policy says]",
)
@click.option("--no-retry", is_flag=True, help="The same as --retries 0.")
@click.option(
    "--keep-files",
    is_flag=True,
    help="A further attempt without a checkpoint goes on in the files that the one before has left.",
)
@verbose
@as_json
def run(  # noqa: PLR0913  one per option
    *,
    command: tuple[str, ...],
    detach: bool,
    dry_run: bool,
    save: str | None,
    retries: int | None,
    no_retry: bool,
    verbose: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401  values of click
) -> None:
    """Run a COMMAND as a job, in a copy of the current directory, and print its output until it ends.

    The output of the job goes to standard output, messages to standard error. Options stand before the
    COMMAND. Ctrl-C asks whether to detach or to cancel. The exit code is the outcome of the job.
    """
    if not command:
        raise click.UsageError(
            "there is no COMMAND; write it behind the options: runner run -- python train.py"
        )
    for word in command:
        check_text(click.get_current_context(), click.Argument(["command"]), word)
    check_one_word(command)
    if no_retry and retries:
        raise click.UsageError("--retries and --no-retry exclude each other")
    attempts = 1 if no_retry else None if retries is None else retries + 1
    line = make_line(command, attempts=attempts, **options)
    tell_of_input()
    client = find_or_start(complain)
    with details_told(verbose=verbose):
        answer = submit_line(client, line, save, dry_run=dry_run)
    if dry_run or detach:
        show_answer(answer, dry_run=dry_run, as_json=as_json)
        return
    for warning in answer.get("warnings", ()):
        complain(f"warning: {warning}")
    click.get_current_context().exit(_stay(client, answer["job"], as_json=as_json))


def check_one_word(command: tuple[str, ...]) -> None:
    """Refuse a command in one pair of quotes, which no program is called; name the line that works."""
    import shlex

    word = command[0]
    if len(command) > 1 or not any(each.isspace() for each in word) or os.path.exists(word):
        return
    is_line = not set("|&;<>$`()") & set(word) and "=" not in word.split()[0]
    line = " ".join(word.split()) if is_line else f"bash -o pipefail -c {shlex.quote(word)}"
    raise click.UsageError(
        f"{word[:60]!r} is one word, and no program has that name; write: runner run -- {line}"
    )


def tell_of_input() -> None:
    """Say that the job does not get what waits at standard input: a file, or what a pipe already holds."""
    if sys.stdin is None or sys.stdin.closed:
        return
    import select
    from stat import S_ISFIFO, S_ISREG

    try:
        status = os.fstat(sys.stdin.fileno())
        has_more = S_ISREG(status.st_mode) and os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) < status.st_size
        if S_ISFIFO(status.st_mode):
            events = select.poll()
            events.register(sys.stdin.fileno(), select.POLLIN)
            has_more = any(found & select.POLLIN for _, found in events.poll(0))
    except (OSError, ValueError):  # a test or a caller has put something else there
        return
    if has_more:
        complain(
            "standard input is not passed on to the job; save it as a file and name that: --mount, --code"
        )


def submit_line(
    client: Client, line: CommandLine, save: str | None = None, *, dry_run: bool = False
) -> dict[str, Any]:
    """Submit the job of a command line; a problem of the generated file is told with its option."""
    if remote_host(os.environ) is not None:
        line = relative(line)
    try:
        return _submit(client, line, save, dry_run=dry_run)
    except UsageError as error:  # a path cannot be sent
        lines = str(error).splitlines()
        raise UsageError("\n".join(_of_option(each, line) for each in lines)) from error
    except ErrorResponse as error:
        told = ErrorResponse(error.kind, [_of_option(each, line) for each in error.lines], error.code)
        told.details = error.details
        raise told from error


def _of_option(told: str, line: CommandLine) -> str:
    """Return a problem as one of the option that was typed."""
    told = of_option(told, SHOWN)
    if line.requirements is not None and told.startswith(f"{line.requirements}: "):
        return f"{SHOWN}: --requirements: {told}"
    either = "--with, --requirements"
    return told.replace(f": {either}: ", f": {'--with' if line.packages else '--requirements'}: ", 1)


def _submit(client: Client, line: CommandLine, save: str | None, *, dry_run: bool) -> dict[str, Any]:
    """Submit the job of a command line, and write its file first if it is to be saved."""
    if save is None:
        text = yaml_text(line.fields()).encode()
        return client.submit(placed(SHOWN, text), text, None, dry_run=dry_run, shown=SHOWN)
    from runner.cli.run_save import saved_file

    with saved_file(line, save, os.getcwd()) as text:
        return client.submit(placed(save, text), text, None, dry_run=dry_run, shown=SHOWN)


def _stay(client: Client, job: JobSummary, *, as_json: bool) -> int:
    """Print the output of a job until it ends, and return the exit code for its outcome."""
    from runner.cli.run_follow import Follower

    name = job["name"]
    complain(f"{name}: submitted as {job['id']}")
    follower = Follower(client.following(), job["id"], as_json=as_json)
    while True:
        try:
            return follower.follow()
        except KeyboardInterrupt:
            if not wants_cancel(name):
                complain(f"{name} goes on: runner logs -f {name} follows it, runner cancel {name} stops it")
                return INTERRUPTED
            client.cancel_all([job["id"]])


def _typed_line() -> str:
    """Return the next line of the terminal, with its end; nothing at the end of input.

    An interrupt that comes just before the wait ends it, too; ``input`` would wait for the next key first.
    """
    import select

    here, there = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(there, warn_on_full_buffer=False)
    try:
        select.select([sys.stdin, here], [], [])
        return sys.stdin.readline()
    finally:
        signal.set_wakeup_fd(before)
        os.close(here)
        os.close(there)


def wants_cancel(name: str) -> bool:
    """Ask on the terminal whether to cancel a job, until the answer is one of the two.

    The end of input means to detach.  Without a terminal nobody can answer, and the job goes on.
    """
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    question = f"\n{name}: (d)etach or (c)ancel?"
    while True:
        try:
            click.echo(f"{question} ", err=True, nl=False)
            answer = _typed_line()
        except KeyboardInterrupt:
            click.echo(err=True)
            return False
        if not answer:
            click.echo(err=True)
            return False
        if (said := answer.strip().lower() or "d") in ANSWERS:
            return ANSWERS[said]
        question = f"{name}: d or c?"
