"""The command `bonobot`: Django's `manage.py` under the product's name."""

import gc
import os
import sys
from collections.abc import Sequence

from bonobot import __version__

# As shells report a process that SIGPIPE ended.
CLOSED_PIPE_STATUS = 141
# Objects that may be created before Python looks for garbage.
GARBAGE_THRESHOLD = 150_000
SETTINGS_VARIABLE = "DJANGO_SETTINGS_MODULE"
OVERVIEW = """\
Bonobot: governed MCP tools for AI agents

usage: {program} COMMAND [options]

Run {program} COMMAND --help for details and examples.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command in the arguments; without one, list the commands."""
    program, command_line = (
        _get_program_name(),
        list(sys.argv[1:] if arguments is None else arguments),
    )
    if command_line[:1] == ["--no-color"]:  # Django's parser takes options after the command only
        os.environ["NO_COLOR"] = "1"
        del command_line[0]
    from django.core.exceptions import ImproperlyConfigured

    try:
        if command_line in ([], ["help"], ["--help"], ["-h"]):
            os.environ.setdefault(SETTINGS_VARIABLE, "bonobot.settings")
            sys.stdout.write(format_overview(program))
        elif command_line in (["--version"], ["version"]):
            sys.stdout.write(f"Bonobot {__version__}\n")
        else:
            # Imported objects are permanent: looking for garbage among them takes a tenth of the
            # time of a short command.
            gc.set_threshold(GARBAGE_THRESHOLD)
            from bonobot.management.command_groups import replace_renamed

            command_line, notes = replace_renamed(command_line)
            sys.stderr.writelines(f"{note}\n" for note in notes)
            _run_command([program, *command_line])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of a pipe (`head`) has what it needs. The interpreter flushes stdout when it
        # exits, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CLOSED_PIPE_STATUS)
    except ImproperlyConfigured as error:  # its message names the setting and the remedy
        sys.stderr.write(f"settings_wrong: {error}\n")
        sys.exit(1)


def _run_command(command_line: Sequence[str]) -> None:
    from django.core.management import execute_from_command_line

    from bonobot.management.command_groups import is_read_command

    if command_line[1:2] == ["up"]:
        from bonobot.processes.programs import set_settings_variables

        set_settings_variables(command_line[2:])
    reads = is_read_command(command_line[1:])
    os.environ.setdefault(
        SETTINGS_VARIABLE, "bonobot.settings.read_only_commands" if reads else "bonobot.settings"
    )
    try:
        execute_from_command_line([*command_line])
    finally:
        # Most commands start no runtime and don't load its module.
        if "bonobot.core.runtime" in sys.modules:
            from bonobot.core.runtime import close_runtime

            close_runtime()
        # The interpreter looks for garbage among all objects before it ends, which takes as long as
        # half of a short command.
        gc.freeze()


def format_overview(program: str) -> str:
    """Return the list of commands: Bonobot's with their help, then Django's names.

    Apps aren't set up, which takes most of a command's time.
    """
    from bonobot.management.command_groups import list_other_commands, list_own_commands

    helps = list_own_commands()
    width = max(map(len, helps))
    lines = [
        OVERVIEW.format(program=program),
        *(f"  {name:<{width}}  {text}" for name, text in helps.items()),
        "",
        "Django's commands:",
        *_wrap_names(list_other_commands()),
    ]
    return "\n".join(lines) + "\n"


def _get_program_name() -> str:
    name = os.path.basename(sys.argv[0])  # noqa: PTH119 - a plain string, as argparse does it
    return "bonobot" if name == "__main__.py" else name


def _wrap_names(names: Sequence[str]) -> list[str]:
    import textwrap

    return textwrap.wrap(
        ", ".join(names),
        width=88,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    main()
