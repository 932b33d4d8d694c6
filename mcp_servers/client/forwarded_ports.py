"""Database ports that are forwarded from a sandbox, since database drivers use no HTTP proxy.

Each host in a database URL of the arguments or environment, or in `…_HOST` with `…_PORT`, gets a
loopback address of the sandbox, whose ports are forwarded through the egress proxy to that host, so
the egress rules apply. Host names are kept (`/etc/hosts` of the sandbox), so TLS certificates
match; IP addresses are replaced.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

# Default ports by scheme of a database URL, without a `+driver` suffix.
DEFAULT_PORTS = {
    "postgresql": 5432,
    "postgres": 5432,
    "mysql": 3306,
    "mariadb": 3306,
    "mongodb": 27017,
    "redis": 6379,
    "rediss": 6379,
    "valkey": 6379,
    "neo4j": 7687,
    "bolt": 7687,
    "mssql": 1433,
    "sqlserver": 1433,
    "oracle": 1521,
    "clickhouse": 9000,
    "cassandra": 9042,
    "amqp": 5672,
    "amqps": 5671,
    "nats": 4222,
}
URL = re.compile(r"\b([a-z][a-z0-9]*)(?:\+[a-z+]+)?://(?:[^/?#\s]*@)?([^/?#\s]+)", re.IGNORECASE)
HOST_AND_PORT = re.compile(r"\[([0-9a-fA-F:]+)\](?::(\d+))?|([^:,\[\]]+)(?::(\d+))?")
HOST_NAME = re.compile(r"(?!-)[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?", re.IGNORECASE)
MAX_HOSTS = 16


@dataclass(frozen=True)
class ForwardedPort:
    """A port of `address`, a loopback address of the sandbox, that is forwarded to `host`."""

    host: str
    port: int
    address: str

    @property
    def target(self) -> str:
        """Return the target as `host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_name(self) -> bool:
        """Return whether the host is a name rather than an IP address."""
        return _parse_address(self.host) is None


def find_forwarded_ports(args: Sequence[str], env: Mapping[str, str]) -> tuple[ForwardedPort, ...]:
    """Return the database ports in a command's arguments and environment.

    Ports below 1024 can't be opened in a sandbox, and this machine can't be reached from one: both
    are left out.
    """
    addresses: dict[str, str] = {}
    ports: dict[ForwardedPort, None] = {}
    for host, port in _find_hosts(args, env):
        name = host.lower().removesuffix(".")
        if not 1024 <= port < 65536 or not _is_remote(name):
            continue
        if name not in addresses and len(addresses) < MAX_HOSTS:
            addresses[name] = f"127.0.0.{len(addresses) + 2}"
        if name in addresses:
            ports[ForwardedPort(name, port, addresses[name])] = None
    return tuple(ports)


def replace_addresses(value: str, ports: Sequence[ForwardedPort]) -> str:
    """Return `value` with forwarded IP addresses replaced by those of the sandbox."""
    for port in ports:
        if not port.is_name:
            literal = f"[{port.host}]" if ":" in port.host else port.host
            value = re.sub(rf"(?<![\w.:]){re.escape(literal)}(?![\w.])", port.address, value)
            value = port.address if value == port.host else value
    return value


def format_hosts(ports: Sequence[ForwardedPort]) -> str:
    """Return the `/etc/hosts` lines of the host names."""
    names = dict.fromkeys((port.address, port.host) for port in ports if port.is_name)
    return "".join(f"{address} {name}\n" for address, name in names)


def _find_hosts(args: Sequence[str], env: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield hosts with their ports, unchecked."""
    for value in (*args, *env.values()):
        for scheme, hosts in URL.findall(value):
            if default := DEFAULT_PORTS.get(scheme.lower()):
                yield from _split_hosts(hosts, default)
    for name, host in env.items():
        port = env.get(f"{name.removesuffix('HOST')}PORT", "")
        if name.endswith("HOST") and port.isascii() and port.isdecimal():
            yield host, int(port)


def _split_hosts(text: str, default: int) -> Iterator[tuple[str, int]]:
    """Yield the hosts of a URL; URLs of replicated databases have several."""
    for part in text.split(","):
        if match := HOST_AND_PORT.fullmatch(part):
            literal, literal_port, name, port = match.groups()
            yield literal or name, int(literal_port or port or default)


def _is_remote(host: str) -> bool:
    """Return whether a host may be one other than this machine."""
    if address := _parse_address(host):
        return not (address.is_loopback or address.is_unspecified)
    return bool(HOST_NAME.fullmatch(host)) and host != "localhost"


def _parse_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
