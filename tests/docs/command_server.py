"""`bonobot` without its startup time: a process that loaded everything forks for each command.

`python -m tests.docs.command_server serve SOCKET` waits for commands. The program written by
`write_program` sends its arguments, folder, environment and standard streams, and exits with the
status of the command. Settings are read once, at startup: one process serves one installation.
"""

import gc
import json
import os
import selectors
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path

# Modules that many commands import on demand.
PRELOADED = (
    "bonobot.urls",
    "celery.app.task",
    "django.db.models.sql.compiler",
    "rich._emoji_codes",
)
PROGRAM = """#!{python} -IS
import json, os, socket, sys
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect({path!r})
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(link, [request], [0, 1, 2])
sys.exit(int(link.recv(16) or b"70"))
"""


def write_program(path: Path, address: Path) -> None:
    """Write the program that replaces `bonobot`."""
    path.write_text(PROGRAM.format(python=sys.executable, path=str(address)), encoding="utf-8")
    path.chmod(0o755)


def serve(address: str) -> None:
    """Serve commands until the process is killed."""
    import django
    from django.core.management import get_commands, load_command_class

    django.setup()
    for name, app in get_commands().items():
        if app == "bonobot":
            getattr(load_command_class(app, name), "verbs", ())  # imports them
    for module in PRELOADED:
        import_module(module)
    gc.collect()
    gc.freeze()  # else a collection in a child would copy all pages
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        selectors.DefaultSelector() as selector,
    ):
        listener.bind(address)
        listener.listen()
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    child, link = _start_command(listener)
                    selector.register(os.pidfd_open(child), selectors.EVENT_READ, (child, link))
                else:
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    _report_status(*key.data)


def _start_command(listener: socket.socket) -> tuple[int, socket.socket]:
    """Accept a command, fork a child that runs it, and return the child and its connection."""
    link, _ = listener.accept()
    request, files, _, _ = socket.recv_fds(link, 1 << 20, 3)
    child = os.fork()
    if child == 0:
        listener.close()
        link.close()
        arguments, folder, environment = json.loads(request)
        os._exit(_run(arguments, folder, environment, files))
    for file in files:
        os.close(file)
    return child, link


def _report_status(child: int, link: socket.socket) -> None:
    """Send the status of a command."""
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with link, suppress(BrokenPipeError):  # the client may have exited
        link.send(str(status if status >= 0 else 128 - status).encode())


def _run(arguments: list[str], folder: str, environment: dict[str, str], files: list[int]) -> int:
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(folder)
    zone = {
        "TZ": os.environ["TZ"]
    }  # Django sets it when it reads settings, and child processes inherit it
    os.environ.clear()
    os.environ.update(environment | zone)
    sys.argv = ["bonobot", *arguments]
    from bonobot.__main__ import main

    try:
        main(arguments)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else bool(ended.code)
    except BaseException:  # noqa: BLE001 - a child must exit here
        traceback.print_exc()
        status = 70
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    serve(sys.argv[2])
