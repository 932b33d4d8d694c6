"""`bonobot` without its start-up time: a process that has loaded everything forks for each command.

`python -m tests.docs.command_server serve SOCKET` waits for commands; the program that `program`
writes sends it its arguments, folder, environment and the three standard files, and ends with the
command's status. Settings are read once, at the start: one such process serves one installation.
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

# What many commands import only when they need it.
LATER = ("bonobot.urls", "celery.app.task", "django.db.models.sql.compiler", "rich._emoji_codes")
PROGRAM = """#!{python} -IS
import json, os, socket, sys
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect({path!r})
asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(link, [asked], [0, 1, 2])
sys.exit(int(link.recv(16) or b"70"))
"""


def program(path: Path, address: Path) -> None:
    """Write the program that stands for `bonobot`."""
    path.write_text(PROGRAM.format(python=sys.executable, path=str(address)), encoding="utf-8")
    path.chmod(0o755)


def serve(address: str) -> None:
    """Answer until the process is ended."""
    import django
    from django.core.management import get_commands, load_command_class

    django.setup()
    for name, app in get_commands().items():
        if app == "bonobot":
            getattr(load_command_class(app, name), "verbs", ())  # imports them
    for module in LATER:
        import_module(module)
    gc.collect()
    gc.freeze()  # a child that looked through all this would copy it
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        selectors.DefaultSelector() as waiting,
    ):
        listener.bind(address)
        listener.listen()
        waiting.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is listener:
                    child, link = _begin(listener)
                    waiting.register(os.pidfd_open(child), selectors.EVENT_READ, (child, link))
                else:
                    waiting.unregister(key.fileobj)
                    os.close(key.fd)
                    _end(*key.data)


def _begin(listener: socket.socket) -> tuple[int, socket.socket]:
    """Take a command, fork a child that runs it, and return the child with who waits for it."""
    link, _ = listener.accept()
    asked, files, _, _ = socket.recv_fds(link, 1 << 20, 3)
    child = os.fork()
    if child == 0:
        listener.close()
        link.close()
        arguments, folder, environment = json.loads(asked)
        os._exit(_run(arguments, folder, environment, files))
    for file in files:
        os.close(file)
    return child, link


def _end(child: int, link: socket.socket) -> None:
    """Say how a command ended."""
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with link, suppress(BrokenPipeError):  # who asked may be gone
        link.send(str(status if status >= 0 else 128 - status).encode())


def _run(arguments: list[str], folder: str, environment: dict[str, str], files: list[int]) -> int:
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(folder)
    zone = {"TZ": os.environ["TZ"]}  # Django sets it when settings are read: servers are told it
    os.environ.clear()
    os.environ.update(environment | zone)
    sys.argv = ["bonobot", *arguments]
    from bonobot.__main__ import main

    try:
        main(arguments)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else bool(ended.code)
    except BaseException:  # noqa: BLE001 - a child ends here, whatever it was
        traceback.print_exc()
        status = 70
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    serve(sys.argv[2])
