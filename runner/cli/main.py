"""The command ``runner``: find and run a subcommand, and convert errors into exit codes.

Each command has its own module, which is imported when the command is called: ``runner submit`` does not
load the tables of ``runner list``.
"""

import errno
import os
import sys
from importlib import import_module
from io import TextIOWrapper
from itertools import takewhile
from stat import S_ISCHR
from typing import Final, NoReturn

import click

from runner.base.errors import UNWRITTEN, RunnerError, Unavailable, UsageError
from runner.cli.console import INTERRUPTED, READER_GONE, TERMINAL_GONE, complain, complain_of, discard
from runner.cli.entry import hear_interrupts
from runner.cli.parameters import command_summaries
from runner.client.autostart import remote_host

COMMANDS: Final = {
    "run": "runner.cli.run:run",
    "lock": "runner.cli.lock:lock",
    "submit": "runner.cli.submit:submit",
    "list": "runner.cli.jobs:list_jobs",
    "show": "runner.cli.jobs:show",
    "why": "runner.cli.why:why",
    "top": "runner.cli.top:top",
    "dash": "runner.cli.dash:dash",
    "logs": "runner.cli.logs:logs",
    "metrics": "runner.cli.metrics:metrics",
    "plot": "runner.cli.metrics:plot",
    "events": "runner.cli.events:events",
    "wait": "runner.cli.wait:wait",
    "exec": "runner.cli.exec:exec_",
    "shell": "runner.cli.shell:shell",
    "attach": "runner.cli.terminal:attach",
    "forward": "runner.cli.forward:forward",
    "cp": "runner.cli.cp:cp",
    "cancel": "runner.cli.job_control:cancel",
    "kill": "runner.cli.job_control:kill",
    "restart": "runner.cli.job_control:restart",
    "set": "runner.cli.set_limits:set_limits",
    "apply": "runner.cli.apply:apply",
    "diff": "runner.cli.diff:diff",
    "rollback": "runner.cli.apply:rollback",
    "revisions": "runner.cli.apply:revisions",
    "hold": "runner.cli.job_control:hold",
    "release": "runner.cli.job_control:release",
    "schedule": "runner.cli.schedule:schedule",
    "sweep": "runner.cli.sweep:sweep",
    "validate": "runner.cli.job_file:commands",
    "schema": "runner.cli.job_file:commands",
    "init": "runner.cli.job_file:commands",
    "policy": "runner.cli.policy:policy",
    "gpus": "runner.cli.gpus:gpus",
    "doctor": "runner.cli.doctor:doctor",
    "images": "runner.cli.images:images",
    "data": "runner.cli.data:data",
    "profiles": "runner.cli.profiles:profiles",
    "bench": "runner.cli.bench.command:bench",
    "tune": "runner.cli.tune.command:tune",
    "usage": "runner.cli.usage:usage",
    "simulate": "runner.cli.simulate:simulate",
    "prune": "runner.cli.prune:prune",
    "settings": "runner.cli.settings:settings",
    "serve": "runner.cli.daemon:serve",
    "stop": "runner.cli.daemon:stop",
    "backup": "runner.cli.store:backup",
    "restore": "runner.cli.store:restore",
    "version": "runner.cli.daemon:version",
    "completion": "runner.cli.completion:completion",
    "host": "runner.cli.host:host",
}

HIDDEN: Final = {
    "dial": "runner.cli.dial:dial",
    "receive": "runner.cli.receive:receive",
}
"""Commands that a client on another machine runs here, by ssh."""

GROUPS: Final = {
    "Jobs": ("run", "submit", "list", "show", "why", "top", "dash", "logs", "metrics", "plot", "events",
             "wait", "cancel", "kill", "restart", "hold", "release"),
    "In a job": ("shell", "exec", "attach", "forward", "cp"),
    "Changes": ("diff", "set", "apply", "rollback", "revisions"),
    "Files": ("init", "validate", "lock", "schema", "schedule", "sweep", "policy", "profiles"),
    "Machine": ("gpus", "doctor", "usage", "images", "data"),
    "Measurements": ("bench", "tune", "simulate"),
    "Daemon": ("serve", "stop", "settings", "prune", "backup", "restore", "version", "completion", "host"),
}  # fmt: skip
"""The commands below the headings of ``runner --help``."""

EXIT_CODES: Final = {
    0: "success; a job that was waited for succeeded",
    1: "a bug in runner",
    2: "usage error: change the command, the job file or the settings",
    3: "refused by a policy, a permission, a limit or the state of a job",
    4: "unavailable: the daemon, the engine or the disk",
    10: "a job that was waited for failed",
    11: "a job that was waited for was cancelled",
    12: "a job that was waited for is held until somebody releases it",
    124: "the time of wait --timeout has passed",
    130: "interrupted; jobs continue",
    141: "the reader of the output has closed it",
}

LOCAL: Final = frozenset({"serve", "backup", "restore", "doctor", "images", "data", "bench"})
"""Commands about the machine that they are typed on, whatever host is chosen."""

ALIKE: Final = 0.7
"""So alike are two options of which one may be a slip for the other: form and from, not hold and help."""

HELP: Final = ("-h", "--help")

TYPED: Final = "runner.typed"
"""Key of a context for the words from the command on."""


class LazyGroup(click.Group):
    """A click group that imports a command when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        known = COMMANDS.get(cmd_name) or HIDDEN.get(cmd_name)
        if known is None:
            return None
        module, _, name = known.partition(":")
        found: click.Command | tuple[click.Command, ...] = getattr(import_module(module), name)
        return next(c for c in found if c.name == cmd_name) if isinstance(found, tuple) else found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in groups, each with its whole first sentence."""
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl(command_summaries(self, ctx, names))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before the command; an error becomes a one-line message."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            _mistyped(error, ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command by its name."""
        ctx.meta[TYPED] = args
        is_help = any(word in HELP for word in takewhile(lambda word: word != "--", args))
        if args[:1] and args[0] in LOCAL and not is_help and not ctx.resilient_parsing:
            _refuse_host(args[0])
        if args and args[0] not in {**COMMANDS, **HIDDEN} and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{_meant(args[0])}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            _refuse_options_as_values(command, rest, ctx)
        return name, command, rest

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; an error becomes a one-line message and its exit code."""
        hear_interrupts()
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            _mistyped(error, ctx)
        except RunnerError as error:
            ctx.exit(complain_of(error))
        except FileNotFoundError as error:
            if error.filename is not None or _stands_somewhere():
                raise
            complain("runner: the directory that you are in does not exist any more; cd to one that does")
            ctx.exit(UsageError.exit_code)
        except KeyboardInterrupt as stopped:
            complain(str(stopped) or "interrupted")
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            discard(sys.stdout)
            ctx.exit(READER_GONE)


def _mistyped(error: click.UsageError, ctx: click.Context) -> NoReturn:
    """Print a usage error in one line with a pointer to the help, and exit."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        raise error
    at, path = error.ctx or ctx, _path(error, ctx)
    _keep_the_near(error)
    fact = " ".join(error.format_message().split()).rstrip(".").replace(". Did", "; did")
    fact = f"{fact[:1].lower()}{fact[1:]}"
    if isinstance(error, click.NoSuchOption) and _belongs_below(error.option_name, at):
        fact = f"no such option {error.option_name!r} before a command"
    complain(f"{path}: {fact}{'' if fact.endswith('?') else ';'} see {path} --help")
    ctx.exit(error.exit_code)


def _refuse_options_as_values(command: click.Command, args: list[str], ctx: click.Context) -> None:
    """Refuse an option, or the end of options, where the value of another option should be."""
    left = list(args)
    while isinstance(command, click.Group) and left and (below := command.get_command(ctx, left[0])):
        command, left = below, left[1:]
    options = [each for each in command.params if isinstance(each, click.Option)]
    takes = {name for each in options if not (each.is_flag or each.count) for name in each.opts}
    known = {"--", *HELP, *(name for each in options for name in (*each.opts, *each.secondary_opts))}
    while left and left[0] != "--":
        word = left.pop(0)
        if word in takes:
            if left[:1] and left[0] in known:
                meant = f"; {word}={left[0]} if that is its value" if word.startswith("--") else ""
                ctx.fail(f"{word} has no value: {left[0]} follows it{meant}")
            left[:1] = []
        elif not word.startswith("-") and not command.context_settings.get("allow_interspersed_args", True):
            return


def _path(error: click.UsageError, ctx: click.Context) -> str:
    """Return the path of the command with the usage error; without click's context, from leading words."""
    if error.ctx:
        return error.ctx.command_path
    command, path = ctx.command, ctx.command_path
    for word in ctx.meta.get(TYPED, ()):
        below = command.get_command(ctx, word) if isinstance(command, click.Group) else None
        if below is None:
            break
        command, path = below, f"{path} {word}"
    return path


def _belongs_below(option: str, ctx: click.Context) -> bool:
    """Return True if an option that a group lacks belongs to one of its commands."""
    group = ctx.command
    if not isinstance(group, click.Group):
        return False
    commands = (group.get_command(ctx, name) for name in group.list_commands(ctx))
    return any(option in param.opts for each in commands if each for param in each.params)


def _stands_somewhere() -> bool:
    """Return True if the current directory exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _meant(name: str) -> str:
    """Return the command that a word stands for: by its meaning in other tools, else by its letters."""
    import difflib

    from runner.cli.other_words import MEANINGS

    if (meant := MEANINGS.get(name.lower())) is not None:
        return f'; did you mean "{meant}"?'
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def _keep_the_near(error: click.UsageError) -> None:
    """Keep only the nearest of click's suggestions; leading dashes do not count as similarity."""
    import difflib

    if isinstance(error, click.NoSuchOption) and error.possibilities:
        bare = {each.lstrip("-"): each for each in error.possibilities}
        near = difflib.get_close_matches(error.option_name.lstrip("-"), bare, n=1, cutoff=ALIKE)
        error.possibilities[:] = [bare[name] for name in near]


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:  # noqa: FBT001  click
    if wanted:
        from runner.cli.daemon import own_version

        click.echo(f"runner {own_version()}")
        ctx.exit()


def _use_host(_ctx: click.Context, _param: click.Parameter, host: str | None) -> None:
    """Let the command be for a server."""
    if host is not None:
        os.environ["RUNNER_HOST"] = host


def _refuse_host(command: str) -> None:
    """Refuse a command that would act here while a host is chosen."""
    host = os.environ.get("RUNNER_HOST") if command == "serve" else remote_host(os.environ)
    if host:
        step = f"type it there, by ssh, or for this machine: RUNNER_HOST= runner {command}"
        complain(f"runner {command}: acts on this machine, not on {host}; {step}")
        sys.exit(UsageError.exit_code)


def _exit_codes() -> str:
    lines = [f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items()]
    return "\b\nExit codes:\n" + "\n".join(lines)


@click.group(cls=LazyGroup, epilog=_exit_codes(), context_settings={"help_option_names": [*HELP]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
    help="Print the version of this command and exit.",
)  # fmt: skip
@click.option(
    "--host", metavar="HOST", expose_value=False, is_eager=True, callback=_use_host,
    help="The server, ssh://USER@SERVER[:PORT] or a name of runner host.",
)  # fmt: skip
def cli() -> None:
    """Containerised batch jobs for a shared GPU server.

    A job file says what to train. The runner builds the image, allocates devices, and resumes the job
    from its newest checkpoint when its program dies. JOB is an id or a name. A name means your own
    newest job or matrix of that name; if you have none, only one other user may have jobs of that name.

    \b
    runner init job.yaml            write a commented job file that works
    runner submit job.yaml --follow
    runner logs -f JOB
    """


def main() -> None:
    """Run the command line of this process; the function does not return."""
    if sys.stdout is None:  # closed: the next opened file would get its number and the output
        _without_output(sys.argv[1:])
    if isinstance(sys.stdout, TextIOWrapper):  # its encoding may lack a character of an answer
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        cli.main(prog_name="runner")
    except OSError as error:
        sys.exit(tell_unwritten(error))


def tell_unwritten(error: OSError) -> int:
    """Say that standard output cannot be written, and return the exit code; raise every other error."""
    if error.errno not in UNWRITTEN or error.filename is not None:
        raise error
    has_gone = error.errno == errno.EIO and S_ISCHR(os.fstat(sys.stdout.fileno()).st_mode)
    discard(sys.stdout)
    if has_gone:  # before the command that follows a job has noticed it
        return TERMINAL_GONE
    complain(f"standard output: {error.strerror}; the command itself may have been done: runner list")
    return Unavailable.exit_code


def _without_output(args: list[str]) -> None:
    """Continue with a null device as standard output for ``serve``; exit for every other command."""
    if "serve" not in args[:1]:
        complain("standard output is closed; nothing was done; >/dev/null discards it")
        sys.exit(Unavailable.exit_code)
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  as long as the process


if __name__ == "__main__":
    main()
