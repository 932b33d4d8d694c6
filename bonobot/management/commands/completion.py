"""`bonobot completion`: complete commands, verbs and options in a shell."""

from argparse import ArgumentParser
from typing import Any

from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand

from bonobot.core.cli.completion import SHELLS, build_levels, render_script
from bonobot.management.command_groups import COMMAND_HELPS, add_examples

PROGRAM = "bonobot"


class Command(BaseCommand):
    help = COMMAND_HELPS["completion"]
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the shell."""
        add_examples(
            parser,
            "bonobot completion bash > ~/.local/share/bash-completion/completions/bonobot",
            "bonobot completion fish > ~/.config/fish/completions/bonobot.fish",
        )
        parser.add_argument("shell", choices=SHELLS, help="Shell to print the script for")

    def handle(self, **options: Any) -> None:
        """Write the script, made from the parsers of Bonobot's own commands."""
        commands = []
        for name, app in sorted(get_commands().items()):
            if app == PROGRAM:
                command = load_command_class(app, name)
                parser = command.create_parser(PROGRAM, name)
                commands.append((name, str(command.help), parser))
        self.stdout.write(
            render_script(options["shell"], PROGRAM, build_levels(commands)), ending=""
        )
