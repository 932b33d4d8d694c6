"""Run the drill: `make drill`, as root, beside PostgreSQL's and Redis's programs, nginx and `ip`.

Two hosts of web, two of worker and beat, each a network namespace with its own address, name and
folder, share a PostgreSQL and a Redis behind `deploy/nginx`. Under load, one part after the other
is killed, cut off or restarted. At the end every charge must have been made as often as somebody
was told that it was, every session must have an answer, the chain of the audit must hold and no
budget may have anything set aside.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.drill.hosts import ADDRESS, HERE, NET, PROBES, TILL, WEB, Host, Services, network, run
from tests.drill.load_generator import Load, until
from tests.parts import ROOT
from tests.wait import eventually

CLIENTS = 6
WARM_S = 8.0
CUT_S = 20.0
WELL_S = 120.0
console = Console(width=150)


@dataclass
class Line:
    """One line of the table."""

    what: str
    sessions: int
    calls: int
    lost: int
    well_s: float
    leader: str


class Drill:
    """The hosts, the load, and what is done to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.services = Services(folder)
        self.hosts = {
            name: Host(name, number)
            for number, name in enumerate(("web1", "web2", "work1", "work2"), start=11)
        }
        self.lines: list[Line] = []
        self.faults: list[str] = []
        self.load: Load

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Make hosts and services, start every program, and take all away at the end."""
        with network():
            try:
                self.services.start([self.hosts[name].address for name in ("web1", "web2")])
                self._settle_in()
                for host in self.hosts.values():
                    host.make()
                    self._equip(host)
                eventually(self._all_well, within=WELL_S, every=0.5, what="the whole fleet")
                yield
            finally:
                for host in self.hosts.values():
                    host.unmake()
                self.services.stop()

    def _settle_in(self) -> None:
        """Make the secrets, migrate, and fill the database."""
        run("sh", ROOT / "deploy" / "secrets", self.folder / "secrets")
        secrets = {
            f"BONOBOT_{name.upper()}_FILE": str(self.folder / "secrets" / name)
            for name in ("secret_key", "field_keys", "audit_keys", "token_peppers")
        }
        self.given = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            **secrets,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "bonobot.settings",
            "DATABASE_URL": self.services.database_url,
            "REDIS_URL": self.services.redis_url,
            "BONOBOT_URL": ADDRESS,
            "BONOBOT_METRICS_NETWORKS": f"{NET}.0/24",
            "BONOBOT_CALLS_PER_MINUTE": "100000",
            "FORWARDED_ALLOW_IPS": HERE,
        }
        os.environ.update(self.given | {"BONOBOT_VAR": str(self.folder / "here")})
        (self.folder / "here").mkdir(mode=0o700)
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        from tests.drill.participants import found

        self.organization_id, tokens, person = found(f"http://{HERE}:{TILL}/mcp", CLIENTS)
        self.load = Load(tokens, person, self.services.till)

    def _equip(self, host: Host) -> None:
        if host.name.startswith("web"):
            given = ("web", "--host", host.address, "--port", str(WEB))
            host.add(*given, folder=self.folder, given=self.given).start()
            return
        for program, port in (("worker", PROBES), ("beat", PROBES + 1)):
            probe = {"BONOBOT_PROBE_ADDRESS": f"{host.address}:{port}"}
            made = host.add(program, folder=self.folder, given=self.given)
            made.environment = {**made.environment, **probe}
            made.start()

    def _all_well(self) -> bool:
        return all(
            _get(f"http://{self.hosts[name].address}:{port}/healthz") is not None
            for name, port in (
                *(("web1", WEB), ("web2", WEB)),
                *(("work1", PROBES), ("work2", PROBES), ("work1", PROBES + 1)),
                ("work2", PROBES + 1),
            )
        )

    def leaders(self) -> list[str]:
        """Return the hosts whose beat tells what the rows say: the one that leads."""
        return [
            name
            for name in ("work1", "work2")
            if "bonobot_rows_readable 1.0"
            in (_get(f"http://{self.hosts[name].address}:{PROBES + 1}/metrics") or "")
        ]

    def shares(self) -> dict[str, int]:
        """Return how many requests each web has answered, and how many turns each worker made."""
        metrics = {
            "web": ("bonobot_http_requests_total{", WEB),
            "work": ("bonobot_calls_total{", PROBES),
        }
        found = {}
        for name, host in self.hosts.items():
            wanted, port = metrics[name[:-1]]
            lines = (_get(f"http://{host.address}:{port}/metrics") or "").splitlines()
            found[name] = int(
                sum(float(one.split()[-1]) for one in lines if one.startswith(wanted))
            )
        return found

    async def through(self) -> None:
        """Do everything under load, one after the other."""
        going = asyncio.create_task(self.load.run())
        await asyncio.sleep(WARM_S)
        self.before = await asyncio.to_thread(self.shares)
        for what, operation in self._operations():
            await self._event(what, operation)
        await asyncio.sleep(WARM_S / 2)
        self.after = await asyncio.to_thread(self.shares)
        self.load.stopping = True
        await asyncio.wait_for(going, WELL_S)
        await until(self._rested, "the end of every session", WELL_S)

    def _operations(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        yield "kill -9 web on web1", lambda: self._killed("web1", "web")
        yield "kill -9 worker on work1", lambda: self._killed("work1", "worker")
        yield "kill -9 the beat that leads", self._kill_leader
        yield f"web2 cut off for {CUT_S:.0f} s", lambda: self._cut("web2")
        yield f"work2 cut off for {CUT_S:.0f} s", lambda: self._cut("work2")
        yield "Redis killed and begun empty", lambda: asyncio.to_thread(self.services.restart_redis)
        yield (
            "PostgreSQL stopped as by a crash",
            lambda: asyncio.to_thread(self.services.restart_database),
        )

    async def _event(self, what: str, operation: Callable[[], Awaitable[None]]) -> None:
        tally = self.load.tally
        lost, calls = len(tally.lost), len(tally.out)
        sessions = await asyncio.to_thread(self._open_sessions)
        console.print(f"{time.strftime('%H:%M:%S')} {what}")
        began = time.monotonic()
        await operation()
        await self._well_again()
        took = time.monotonic() - began
        leaders = await asyncio.to_thread(self.leaders)
        if len(leaders) != 1:
            self.faults.append(f"{what}: {len(leaders)} beats lead")
        line = Line(what, sessions, calls, len(tally.lost) - lost, took, ", ".join(leaders))
        self.lines.append(line)

    async def _well_again(self) -> None:
        """Wait until every process answers, every client was answered, and a session ran."""
        await until(self._all_well, "every process", WELL_S)
        before = dict(self.load.by_client)
        async with self.load.http(self.load.person) as http:
            session_id = await self.load.begin_session(http)
        await until(lambda: self._ended(session_id), "a session", WELL_S)
        numbers = range(CLIENTS)
        served = self.load.by_client.get
        await until(
            lambda: all(served(one, 0) > before.get(one, 0) for one in numbers), "clients", WELL_S
        )
        await until(lambda: len(self.leaders()) == 1, "a beat that leads", WELL_S)

    async def _killed(self, host: str, program: str) -> None:
        target = self.hosts[host].programs[program]
        await asyncio.to_thread(target.kill)
        target.start()

    async def _kill_leader(self) -> None:
        [leader] = await asyncio.to_thread(self.leaders)
        await asyncio.to_thread(self.hosts[leader].programs["beat"].kill)
        [other] = {"work1", "work2"} - {leader}
        await until(lambda: self.leaders() == [other], "the other beat to lead", WELL_S)
        self.hosts[leader].programs["beat"].start()

    async def _cut(self, host: str) -> None:
        self.hosts[host].cut()
        await asyncio.sleep(CUT_S)
        self.hosts[host].mend()

    def _open_sessions(self) -> int:
        return len(_unfinished())

    def _ended(self, session_id: str) -> bool:
        return session_id not in _unfinished()

    def _rested(self) -> bool:
        return not self._open_sessions()

    def report(self) -> bool:
        """Print what was done and found; tell whether all of it is well."""
        from tests.drill.verify_outcome import findings

        table = Table(title="The drill")
        for title in (
            "what",
            "sessions open",
            "calls out",
            "calls lost",
            "well after",
            "active scheduler",
        ):
            table.add_column(title)
        for one in self.lines:
            table.add_row(
                one.what,
                *map(str, (one.sessions, one.calls, one.lost)),
                f"{one.well_s:.0f} s",
                one.leader,
            )
        console.print(table)
        console.print(
            "Requests of web, calls of workers: before anything happened",
            self.before,
            "at the end:",
            self.after,
        )
        if not all(self.after.values()):
            self.faults.append(f"not all had work: {self.after}")
        codes = Counter(text[:90] for text in self.load.tally.lost.values())
        for text, times in codes.most_common(8):
            console.print(f"  {times} × {text}", markup=False)
        notes, faults = findings(self.organization_id, self.load)
        for one in notes:
            console.print(f"  {one}", markup=False)
        for fault in (*self.faults, *faults):
            console.print(f"FAULT: {fault}", style="red", markup=False)
        return not self.faults and not faults


def _unfinished() -> list[str]:
    """Return the sessions that aren't over; asked again where the database was restarted."""
    from django.db import OperationalError, close_old_connections

    from agents.models import Session

    while True:
        close_old_connections()
        try:
            return list(map(str, Session.objects.unfinished().values_list("pk", flat=True)))
        except OperationalError:
            continue
        finally:
            close_old_connections()


def _get(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310  # our own addresses
            return str(answer.read().decode())
    except OSError:
        return None


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run it; 0 where nothing was lost."""
    if os.geteuid() or subprocess.run(["ip", "netns"], check=False, capture_output=True).returncode:
        sys.stderr.write("The drill needs root and `ip netns`.\n")
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    with tempfile.TemporaryDirectory(prefix="bonobot-drill-", ignore_cleanup_errors=True) as name:
        drill = Drill(Path(name))
        try:
            with drill.standing():
                asyncio.run(drill.through())
                return 0 if drill.report() else 1
        except BaseException:
            kept = Path(tempfile.gettempdir()) / "bonobot-drill-logs"
            run("sh", "-c", f"rm -rf {kept}; mkdir {kept}; cp {name}/*.log {kept}/", check=False)
            console.print(f"The logs are in {kept}")
            raise


if __name__ == "__main__":
    sys.exit(main())
