"""How the web process listens."""

import socket
from contextlib import closing

import pytest

from bonobot.processes.run_web_process import bind_shared_port, build_parser


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_processes_share_a_port_only_if_all_of_them_ask_for_it(host: str) -> None:
    with closing(bind_shared_port(host, 0)) as first:
        port = first.getsockname()[1]
        with closing(bind_shared_port(host, port)) as second:
            assert second.getsockname()[:2] == (host, port)
        with closing(socket.socket(first.family)) as other, pytest.raises(OSError, match="in use"):
            other.bind((host, port))


def test_a_bound_port_gets_no_connections_before_the_server_is_ready() -> None:
    with closing(bind_shared_port("127.0.0.1", 0)) as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname(), timeout=5)


def test_the_port_is_shared_only_on_request() -> None:
    assert not build_parser().parse_args([]).reuse_port
    assert build_parser().parse_args(["--reuse-port"]).reuse_port
