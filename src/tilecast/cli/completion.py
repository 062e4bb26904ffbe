"""`tilecast completion SHELL`: the script that makes the shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

from tilecast.errors import InvalidInput


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script, e.g.: eval "$(tilecast completion bash)"."""
    from tilecast.cli.main import cli

    completion = get_completion_class(shell)
    if completion is None:
        raise InvalidInput(f"no completion for {shell!r}; allowed: bash, zsh, fish")
    click.echo(completion(cli, {}, "tilecast", "_TILECAST_COMPLETE").source())
