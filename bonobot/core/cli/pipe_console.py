"""A console for output that another program may stop reading, such as `head`."""

from rich.console import Console


class PipeConsole(Console):
    """A console that raises `BrokenPipeError` when nothing reads its output anymore.

    Rich raises `SystemExit`, which would stop the runtime's loop when a coroutine prints.
    """

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
