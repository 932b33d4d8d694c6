"""Hosts that are network namespaces of this one: a bridge, addresses, programs, and their ends.

A host has an address of its own on the bridge, a name, and a folder for `BONOBOT_VAR`; its link can
be taken away. PostgreSQL, Redis and nginx stand at the bridge's own address, as instances of the
drill's own.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.parts import ROOT
from tests.wait import eventually

BRIDGE, NET = "bonobot-drill", "10.77.0"
HERE = f"{NET}.1"
NGINX, POSTGRES, REDIS, TILL, WEB, PROBES = 28620, 28621, 28622, 28623, 8000, 9464
ADDRESS = f"http://{HERE}:{NGINX}"
AWAIT_S = 90.0


def run(*command: str | Path, check: bool = True) -> str:
    """Run a command to its end and return what it wrote."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr or done.stdout}")
    return done.stdout


@dataclass
class Program:
    """A program of a host: how it is started, and the process that runs."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start it in a process group of its own."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill it and all that it started; wait for its end."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)


@dataclass
class Host:
    """A namespace on the bridge."""

    name: str
    number: int
    programs: dict[str, Program] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{NET}.{self.number}"

    @property
    def _space(self) -> str:
        return f"drill-{self.name}"

    @property
    def _link(self) -> str:
        return f"drill{self.number}"

    def make(self) -> None:
        """Make the namespace with its address on the bridge."""
        run("ip", "netns", "add", self._space)
        inner = f"inner{self.number}"
        run("ip", "link", "add", self._link, "type", "veth", "peer", "name", inner)
        run("ip", "link", "set", self._link, "master", BRIDGE, "up")
        run("ip", "link", "set", inner, "netns", self._space, "name", "eth0")
        inside = ("ip", "-n", self._space)
        run(*inside, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run(*inside, "link", "set", device, "up")

    def unmake(self) -> None:
        """End its programs and take it away."""
        for program in self.programs.values():
            program.kill()
        run("ip", "netns", "delete", self._space, check=False)
        run("ip", "link", "delete", self._link, check=False)

    def cut(self) -> None:
        """Take its link away; the programs run on."""
        run("ip", "link", "set", self._link, "down")

    def mend(self) -> None:
        """Give the link back."""
        run("ip", "link", "set", self._link, "up")

    def add(self, program: str, *arguments: str, folder: Path, given: Mapping[str, str]) -> Program:
        """Give it a program of `bonobot`, not started yet."""
        var = folder / self.name
        var.mkdir(mode=0o700, exist_ok=True)
        environment = {
            **given,
            "BONOBOT_VAR": str(var),
            "BONOBOT_PROBE_ADDRESS": f"{self.address}:{PROBES}",
        }
        named = ["sh", "-c", f'hostname {self.name} && exec "$@"', "sh"]
        bonobot = [sys.executable, "-m", "bonobot", program, *arguments]
        command = ["ip", "netns", "exec", self._space, "unshare", "--uts", *named, *bonobot]
        made = Program(program, command, environment, folder / f"{self.name}-{program}.log")
        self.programs[program] = made
        return made


@dataclass
class Services:
    """PostgreSQL, Redis, nginx and the upstream, at the bridge's address."""

    folder: Path
    running: list[Program] = field(default_factory=list)

    @property
    def database_url(self) -> str:
        return f"postgresql://postgres@{HERE}:{POSTGRES}/postgres"

    @property
    def redis_url(self) -> str:
        return f"redis://{HERE}:{REDIS}/0"

    @property
    def till(self) -> Path:
        """Where the upstream writes down what was charged."""
        return self.folder / "till"

    def start(self, webs: list[str]) -> None:
        """Start all of them and wait until they answer."""
        self._database()
        self.redis()
        self._nginx(webs)
        self.till.touch()
        script = Path(__file__).with_name("charge_server.py")
        self._start("till", sys.executable, str(script), str(self.till), str(TILL))

    def redis(self) -> None:
        """Start Redis, which keeps nothing."""
        listening = ("--bind", HERE, "--port", str(REDIS), "--protected-mode", "no")
        self._start("redis", "redis-server", *listening, "--appendonly", "no", "--save", "")
        ask = ("redis-cli", "-h", HERE, "-p", str(REDIS), "ping")
        eventually(lambda: "PONG" in run(*ask, check=False), within=AWAIT_S, what="Redis")

    def restart_redis(self) -> None:
        """Kill Redis and start it again: what it held is gone."""
        [old] = [one for one in self.running if one.name == "redis"]
        old.kill()
        self.running.remove(old)
        self.redis()

    def restart_database(self) -> None:
        """Stop PostgreSQL as a crash does, and start it again."""
        self._control("restart", "--mode=immediate", "--wait")

    def stop(self) -> None:
        """End everything."""
        for program in self.running:
            program.kill()
        self._control("stop", "--mode=immediate", check=False)

    def _database(self) -> None:
        data = self.folder / "postgres"
        data.mkdir()
        shutil.chown(data, "postgres", "postgres")
        self.folder.chmod(0o711)
        self._as_postgres("initdb", "--auth=trust", "--username=postgres", "--pgdata", str(data))
        with (data / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write(
                f"listen_addresses = '{HERE}'\nport = {POSTGRES}\nmax_connections = 150\n"
                f"unix_socket_directories = '{data}'\n"
            )
        with (data / "pg_hba.conf").open("a", encoding="utf-8") as rules:
            rules.write(f"host all all {NET}.0/24 trust\n")
        self._control("start", "--wait")

    def _control(self, operation: str, *more: str, check: bool = True) -> None:
        data = str(self.folder / "postgres")
        log = f"--log={data}/log"
        self._as_postgres("pg_ctl", operation, "--pgdata", data, log, *more, check=check)

    def _as_postgres(self, program: str, *arguments: str, check: bool = True) -> None:
        found = shutil.which(program) or next(
            iter(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))), program
        )
        command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", found]
        with (self.folder / "postgres.log").open("ab") as log:
            done = subprocess.run(
                [*command, *arguments], cwd="/", stdout=log, stderr=log, check=False
            )
        if check and done.returncode:
            raise RuntimeError(f"{program}: {(self.folder / 'postgres.log').read_text()}")

    def _nginx(self, webs: list[str]) -> None:
        given = ROOT / "deploy" / "nginx"
        for path in given.glob("bonobot*.conf"):
            shutil.copy(path, self.folder)
        site = (given / "site.conf").read_text(encoding="utf-8")
        for number, address in enumerate(webs, start=1):
            site = site.replace(f"127.0.0.1:800{number}", f"{address}:{WEB}")
        site = site.replace("listen 443 ssl http2;", f"listen {HERE}:{NGINX};")
        site = re.sub(r"^ +listen (80|\[::\]).*;$|^ +ssl_.*;$", "", site, flags=re.MULTILINE)
        site = site.replace("return 301", f"listen {HERE}:{NGINX + 9}; return 301")
        kept = "".join(
            f"{name}_temp_path {self.folder}/{name};"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        main = self.folder / "nginx.conf"
        main.write_text(
            f"user root; daemon off; master_process off; pid {self.folder}/pid;\n"
            f"events {{ worker_connections 1024; }}\nhttp {{ access_log off; {kept}\n{site}\n}}\n",
            encoding="utf-8",
        )
        errors = str(self.folder / "nginx-errors.log")
        self._start("nginx", "nginx", "-p", str(self.folder), "-c", str(main), "-e", errors)

    def _start(self, name: str, *command: str) -> None:
        log = self.folder / f"{name}.log"
        program = Program(name, list(command), dict(os.environ), log)
        program.start()
        self.running.append(program)


@contextlib.contextmanager
def network() -> Iterator[None]:
    """Make the bridge, and take it away at the end."""
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    try:
        run("ip", "addr", "add", f"{HERE}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        yield
    finally:
        run("ip", "link", "delete", BRIDGE, check=False)
