"""``runner completion``: print the shell script that completes commands, options and job names."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for a shell.

    \b
    bash: eval "$(runner completion bash)" in ~/.bashrc
    zsh:  eval "$(runner completion zsh)" in ~/.zshrc
    fish: runner completion fish > ~/.config/fish/completions/runner.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"{shell}: this version of click cannot complete in it")
    group = click.get_current_context().find_root().command
    click.echo(found(group, {}, "runner", "_RUNNER_COMPLETE").source())
