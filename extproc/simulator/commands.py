"""`extproc simulate`: the group of the simulator's commands, each loaded when it is called."""

from importlib import import_module
from typing import Final

import click

from extproc.command_help import CommandGroup

_COMMANDS: Final = {
    "vllm": "extproc.simulator.server_commands",
    "fleet": "extproc.simulator.fleet_commands",
    "matrix": "extproc.simulator.fleet_commands",
    "prefill": "extproc.simulator.split_commands",
    "advise": "extproc.simulator.fleet_commands",
}


class _Lazy(CommandGroup):
    """A fleet in virtual time needs no web server, and a web server no fleet."""

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(_COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101  # a fact of our own modules
        return command


@click.group(cls=_Lazy)
def simulate() -> None:
    """Simulate vLLM: a server, or a whole fleet."""
