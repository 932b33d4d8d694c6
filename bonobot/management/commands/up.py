"""`bonobot up`: run all processes in one terminal."""

import errno
import os
import socket
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.conf import settings
from django.core.checks import Tags
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import OperationalError, connections

from bonobot import __version__
from bonobot.core import runtime
from bonobot.core.cli.command_group import CommandContext
from bonobot.core.i18n.messages import format_count
from bonobot.core.problems import Problem, ServiceUnavailable
from bonobot.ledger.writer import writer_thread
from bonobot.management.command_groups import COMMAND_HELPS, add_examples
from bonobot.management.preload_modules import load_programs
from bonobot.monitoring import database_state, health_endpoints
from bonobot.processes.forked_process import can_fork
from bonobot.processes.memory_arenas import limit_memory_arenas
from bonobot.processes.process_status import delete_statuses, write_statuses
from bonobot.processes.programs import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    LOOPBACK_ADDRESSES,
    build_browser_url,
    build_local_environment,
    has_settings_variables,
    list_processes,
    parse_port,
)
from bonobot.processes.supervisor import ProcessSpec, ProcessSupervisor
from bonobot.processes.supervisor import format_process_names as listed
from mcp_servers.presets.sync_catalog import load_presets_if_outdated
from mcp_servers.schemas import subprocess_pool

READY_WITHIN_S = 60
MAX_WEB_PROCESSES = 64


def parse_web_count(text: str) -> int:
    """Return a valid number of web processes; raises `ArgumentTypeError`."""
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= MAX_WEB_PROCESSES:
        raise ArgumentTypeError(
            f"{text!r} isn't a valid number of processes: choose one from 1 to {MAX_WEB_PROCESSES}"
        )
    if int(text) > 1 and not sys.platform.startswith("linux"):
        # Elsewhere, one of the processes would get all connections.
        raise ArgumentTypeError("only Linux distributes connections among several web processes")
    return int(text)


class Command(BaseCommand):
    help = COMMAND_HELPS["up"]
    # Checks of the installation; `bonobot check` also checks our own code.
    requires_system_checks = [Tags.database, Tags.security]

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_examples(parser, "bonobot up", "bonobot up --port 8080 --no-demo", "bonobot up --web 4")
        parser.add_argument(
            "--host", default=DEFAULT_HOST, help="Address to listen on (default: 127.0.0.1)"
        )
        parser.add_argument(
            "--port",
            type=parse_port,
            default=DEFAULT_PORT,
            help="Port to listen on (default: 8000)",
        )
        parser.add_argument(
            "--no-demo",
            action="store_true",
            help="Don't create a demo organization in an empty database",
        )
        parser.add_argument(
            "--web",
            type=parse_web_count,
            default=1,
            metavar="N",
            help="Number of web processes, which share the port (default: 1; more than 1 on Linux)",
        )
        parser.add_argument("--no-worker", action="store_true", help="Only start web processes")

    def handle(self, **options: Any) -> None:
        """Run until a signal comes; a problem is shown and becomes exit status 1."""
        try:
            self.run(options)
        except Problem as problem:
            cli = CommandContext(
                org=None, as_json=False, stdout=self.stdout._out, stderr=self.stderr._out
            )
            cli.show_problem(problem)
            sys.exit(1)
        except KeyboardInterrupt:  # before any process was started
            sys.exit(130)

    def run(self, options: dict[str, Any]) -> None:
        """Start all processes and supervise them; raises `Problem`."""
        limit_memory_arenas()  # forked processes inherit those of ended threads
        host, port = options["host"], options["port"]
        require_free_port(host, port)
        url = build_browser_url(host, port)
        login = self.prepare_database(url, demo=not options["no_demo"])
        programs = list_processes(
            host, port, web_count=options["web"], with_worker=not options["no_worker"]
        )
        with self.build_supervisor(programs, host, port) as supervisor:
            problem = "not ready"
            try:
                problem = self.wait_until_ready(supervisor, host, port)
            finally:
                ready = not problem and not supervisor.stop_requested
                self.print_summary(login, url if ready else "", listed(programs))
            problem = problem or watch_processes(supervisor)
        delete_statuses(settings.BONOBOT_VAR)
        if problem:
            remedy = "See its last output above, or run `bonobot doctor` to check the installation."
            raise ServiceUnavailable(
                f"{problem}. The other processes were stopped.", code="stopped", remedy=remedy
            )
        self.stdout.write("Stopped.")

    def build_supervisor(
        self, programs: tuple[ProcessSpec, ...], host: str, port: int
    ) -> ProcessSupervisor:
        """Return a supervisor that prints to this command's output; nothing is started yet."""

        def write_line(text: str) -> None:
            self.stdout.write(text)
            self.stdout.flush()

        environment = build_local_environment(host, port)
        url = environment.get("BONOBOT_URL", settings.BONOBOT_URL)
        forks = has_settings_variables(environment) and can_fork()
        if forks:
            load_programs(programs)
        return ProcessSupervisor(
            programs,
            environment=environment,
            write_line=write_line,
            use_color=self.stdout.isatty() and "NO_COLOR" not in os.environ,
            report=lambda statuses: write_statuses(settings.BONOBOT_VAR, statuses, url),
            forks=forks,
        )

    def prepare_database(self, url: str, *, demo: bool) -> dict[str, str]:
        """Migrate, load presets, create the demo in an empty database; return how to sign in."""
        try:
            pending = database_state.count_unapplied_migrations()
        except OperationalError as error:
            detail = f"The database is unavailable: {error}".strip()
            remedy = (
                "Start the database or correct `DATABASE_URL`. Without it, Bonobot uses SQLite."
            )
            raise ServiceUnavailable(detail, code="database_unavailable", remedy=remedy) from None
        if pending:
            self.stdout.write(f"Applying {format_count(pending, 'migration')}")
            call_command("migrate", interactive=False, verbosity=0)
        try:
            load_presets_if_outdated()
            login = self.create_demo_organization() if demo else {}
            return login or describe_missing_account(url)
        finally:
            # Children have their own loops and connections; no threads may be left before a fork.
            runtime.close_runtime()
            writer_thread.close_writer()
            subprocess_pool.close_pools()
            connections.close_all()
            for connection in connections.all(initialized_only=True):
                if connection.vendor == "postgresql":
                    connection.close_pool()  # type: ignore[attr-defined]  # PostgreSQL's only

    def create_demo_organization(self) -> dict[str, str]:
        """Create a demo unless there is an organization; return its user and password."""
        from bonobot.accounts.models import Organization

        if Organization.objects.exists():
            return {}
        # It loads agents, servers and sessions, which takes a fifth of a start.
        from agents.demo_organization import create_demo_organization

        self.stdout.write("Creating a demo organization with an agent and its servers")
        demo = create_demo_organization()
        for problem in demo.problems:
            self.stderr.write(self.style.WARNING(f"Demo server {problem}"))
        return {"user": demo.username, "password": f"{demo.password}  (shown once)"}

    def wait_until_ready(self, supervisor: ProcessSupervisor, host: str, port: int) -> str:
        """Copy output until /healthz answers; return what went wrong, or blank."""
        deadline = time.monotonic() + READY_WITHIN_S
        while not supervisor.stop_requested and not is_healthy(host, port):
            # A web process that can't start names the cause in its output. Others are restarted.
            if problem := supervisor.describe_ended_process("web"):
                return problem
            supervisor.restart_ended_processes()
            if time.monotonic() > deadline:
                return f"`web` wasn't ready within {READY_WITHIN_S} s"
            supervisor.copy_output(0.1)
        return ""

    def print_summary(self, login: dict[str, str], url: str, programs: str) -> None:
        """Print the URL if ready, and always the login, as it isn't stored."""
        lines = [f"  {label:<9} {text}" for label, text in login.items()]
        if url:
            ready = self.style.SUCCESS(f"Bonobot {__version__} is ready: {url}/admin/")
            lines = [f"  {ready}", *lines, f"  data      {settings.BONOBOT_VAR}"]
            lines += [f"  sandbox   {describe_stdio_protection()}"]
            lines += [f"  Ctrl-C stops {programs}"]
        if lines:
            self.stdout.write("\n".join(["", *lines, "", ""]))
            self.stdout.flush()


def describe_stdio_protection() -> str:
    """Return a line about how programs of stdio servers are sandboxed."""
    from mcp_servers.client.sandbox import find_sandbox_fault

    kind = settings.BONOBOT_STDIO_SANDBOX
    if kind != "sandbox":
        return f"stdio servers run with the sandbox mode `{kind}` (BONOBOT_STDIO_SANDBOX)"
    if problem := find_sandbox_fault():
        return (
            f"stdio servers run as your user, with access to your files: {problem}. "
            f"{problem.remedy} Until then, a second organization can't start any."
        )
    return "stdio servers run in a sandbox without access to your files"


def describe_missing_account(url: str) -> dict[str, str]:
    """Return a link that creates the first account if there is none, else an empty dict."""
    from bonobot.accounts.first_account import build_first_account_path, is_account_missing

    if not is_account_missing():
        return {}
    return {"sign up": f"{url}{build_first_account_path()}  (valid for 24 hours)"}


def watch_processes(supervisor: ProcessSupervisor) -> str:
    """Copy output and restart processes until a signal; return a problem if all were given up."""
    while not supervisor.stop_requested:
        supervisor.restart_ended_processes()
        if supervisor.has_given_up:
            return "All processes ended too often"
        supervisor.copy_output(0.5)
    return ""


def require_free_port(host: str, port: int) -> None:
    """Raise `ServiceUnavailable` if the address can't be listened on."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        raise build_listen_error(host, port, error) from None


def build_listen_error(host: str, port: int, error: OSError) -> ServiceUnavailable:
    """Return an error that says why an address can't be listened on."""
    remedy = "Choose another port with `--port N` (`make run PORT=N`)"
    if error.errno == errno.EADDRINUSE:
        detail, remedy = (
            f"Port {port} on {host} is in use.",
            f"{remedy}, or stop the process that uses it.",
        )
        return ServiceUnavailable(detail, code="port_in_use", field="--port", remedy=remedy)
    if error.errno == errno.EACCES:
        detail, remedy = (
            f"Your user isn't allowed to listen on port {port}.",
            f"{remedy} above 1023.",
        )
        return ServiceUnavailable(detail, code="port_forbidden", field="--port", remedy=remedy)
    detail = f"Bonobot can't listen on {host}:{port} ({error})."
    remedy = "Use an address of this host, such as 127.0.0.1 or 0.0.0.0."
    return ServiceUnavailable(detail, code="bad_host", field="--host", remedy=remedy)


def is_healthy(host: str, port: int) -> bool:
    """Return whether /healthz answers 200 on this machine."""
    try:
        with socket.create_connection(
            (LOOPBACK_ADDRESSES.get(host, host), port), timeout=1
        ) as connection:
            connection.settimeout(5)
            request = f"GET {health_endpoints.LIVENESS_PATH} HTTP/1.0\r\n\r\n"
            connection.sendall(request.encode("ascii"))
            return b" 200 " in connection.recv(64)
    except OSError:
        return False
