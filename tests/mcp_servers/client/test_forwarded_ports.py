"""The database ports that are forwarded out of a sandbox."""

import pytest

from mcp_servers.client.forwarded_ports import (
    MAX_HOSTS,
    find_forwarded_ports,
    format_hosts,
    replace_addresses,
)


@pytest.mark.parametrize(
    ("args", "env", "targets"),
    [
        (("--dsn=postgresql+psycopg://u:p@db.example.com/x",), {}, ["db.example.com:5432"]),
        (("mysql://db.example.com:3307",), {}, ["db.example.com:3307"]),
        ((), {"URL": "rediss://:p%40ss@cache.example.com."}, ["cache.example.com:6379"]),
        ((), {"URL": "neo4j+s://graph.example.com"}, ["graph.example.com:7687"]),
        ((), {"URL": "mongodb://u:p@a:1,b:27018,c/db"}, ["b:27018", "c:27017"]),
        ((), {"URL": "redis://[2001:db8::1]:6380"}, ["[2001:db8::1]:6380"]),
        ((), {"PGHOST": "db.example.com", "PGPORT": "5433"}, ["db.example.com:5433"]),
        ((), {"DB_HOST": "db.example.com"}, []),
        (("https://example.com/postgresql://",), {"URL": "file:///etc/hosts"}, []),
        ((), {"URL": "redis://localhost:6379 redis://127.0.0.1 redis://[::1] redis://0.0.0.0"}, []),
        ((), {"PGHOST": "/var/run/postgresql", "PGPORT": "5432"}, []),
        ((), {"PGHOST": "a\n127.0.0.1 b", "PGPORT": "5432"}, []),
        ((), {"URL": "redis://-oProxyCommand:6379 redis://a b"}, ["a:6379"]),
        ((), {"URL": "redis://a:99999 redis://b:x redis://c:22"}, []),
    ],
)
def test_hosts_in_database_urls_are_found(
    args: tuple[str, ...], env: dict[str, str], targets: list[str]
) -> None:
    assert [port.target for port in find_forwarded_ports(args, env)] == targets


def test_a_host_has_one_address_for_all_its_ports() -> None:
    args = ("redis://a:7000", "redis://A:7001", "redis://b:7000")
    ports = find_forwarded_ports(args, {})
    assert [port.address for port in ports] == ["127.0.0.2", "127.0.0.2", "127.0.0.3"]
    assert format_hosts(ports) == "127.0.0.2 a\n127.0.0.3 b\n"


def test_the_number_of_hosts_is_limited() -> None:
    args = [f"redis://host-{number}" for number in range(100)]
    assert len(find_forwarded_ports(args, {})) == MAX_HOSTS


def test_only_complete_addresses_are_replaced() -> None:
    ports = find_forwarded_ports(("redis://10.0.0.1:7000", "redis://name:7000"), {})
    assert replace_addresses("redis://u:p@10.0.0.1:7000/0", ports) == "redis://u:p@127.0.0.2:7000/0"
    assert replace_addresses("10.0.0.11 110.0.0.1 name", ports) == "10.0.0.11 110.0.0.1 name"
    assert replace_addresses("10.0.0.1", ports) == "127.0.0.2"
