"""systemd's units and nginx's configuration, by systemd and nginx themselves."""

import http.client
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.parts import ROOT
from tests.processes import find_unused_port
from tests.wait import eventually

DEPLOY = ROOT / "deploy"


@pytest.mark.systemd
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for path in (DEPLOY / "systemd").glob("bonobot*"):
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE)
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 5
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_command_runs_with_the_settings_and_secrets_of_the_services(tmp_path: Path) -> None:
    etc, var, secrets = tmp_path / "etc", tmp_path / "var", tmp_path / "etc" / "secrets"
    for folder in (etc, var):
        folder.mkdir()
    shutil.copy(DEPLOY / "systemd" / "environment", etc)
    subprocess.run(["sh", DEPLOY / "secrets", secrets], check=True, capture_output=True)
    (secrets / "database_url").write_text("")  # SQLite, in `var`
    (secrets / "redis_url").write_text("")
    text = (DEPLOY / "systemd" / "run").read_text(encoding="utf-8")
    text = text.replace("/etc/bonobot", str(etc)).replace("/var/lib/bonobot", str(var))
    given = re.search(r"^exec setpriv .* -- /opt/bonobot/bin/bonobot \"\$@\"$", text, re.MULTILINE)
    assert given
    text = text.replace(given[0], f'exec {sys.executable} {ROOT / "manage.py"} "$@"')
    script = "from django.conf import settings as s; print(s.BONOBOT_URL, s.BONOBOT_VAR)"
    ran = subprocess.run(
        ["sh", "-c", text, "bonobot", "shell", "--no-imports", "-c", script],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        text=True,
    )
    assert ran.stdout.split() == ["https://bonobot.example.com", str(var)], ran.stderr
    assert not (var / "keys").exists()  # all keys were given
    units = (DEPLOY / "systemd" / "bonobot-migrate.service").read_text(encoding="utf-8")
    read = set(re.findall(r"^LoadCredential=(\w+):", units, re.MULTILINE))
    assert set(re.findall(r"secrets/(\w+)", text)) == read


def test_nginx_uses_the_ports_of_the_units() -> None:
    target = (DEPLOY / "systemd" / "bonobot.target").read_text(encoding="utf-8")
    site = (DEPLOY / "nginx" / "site.conf").read_text(encoding="utf-8")
    send_request = re.findall(r"server 127\.0\.0\.1:(\d+)", site)
    assert send_request == re.findall(r"bonobot-web@(\d+)\.service", target)
    unit = (DEPLOY / "systemd" / "bonobot-web@.service").read_text(encoding="utf-8")
    assert "--port %i" in unit


class Upstream(BaseHTTPRequestHandler):
    """Says which of several servers it is, and what it was told of the client."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        told = f"{self.server.server_port} {self.headers['X-Forwarded-For']} {self.headers['Host']}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told.encode("ascii"))

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@contextmanager
def upstream() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def write_site(folder: Path, *, port: int, upstreams: tuple[int, int]) -> Path:
    """Write the site as one would install it, with other ports and without TLS; return the file."""
    for path in (DEPLOY / "nginx").glob("bonobot*.conf"):
        shutil.copy(path, folder)
    site = (DEPLOY / "nginx" / "site.conf").read_text(encoding="utf-8")
    for given, found in zip(("127.0.0.1:8001", "127.0.0.1:8002"), upstreams, strict=True):
        site = site.replace(given, f"127.0.0.1:{found}")
    site = site.replace("listen 443 ssl http2;", f"listen 127.0.0.1:{port};")
    site = re.sub(r"^ +listen (80|\[::\]).*;$|^ +ssl_.*;$", "", site, flags=re.MULTILINE)
    site = site.replace("return 301", f"listen 127.0.0.1:{find_unused_port()}; return 301")
    kept = "".join(
        f"{name}_temp_path {folder}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = folder / "nginx.conf"
    main.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; {kept}\n{site}\n}}\n",
        encoding="utf-8",
    )
    return main


def send_request(port: int, path: str, headers: dict[str, str]) -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        link.request("POST", path, body=b"{}", headers={"Host": "bonobot.example.com", **headers})
        response = link.getresponse()
        return response.status, response.read().decode("ascii")
    finally:
        link.close()


def answers(port: int) -> bool:
    try:
        return send_request(port, "/", {})[0] == 200
    except OSError:
        return False


@pytest.mark.nginx
def test_requests_of_a_token_reach_one_process_and_others_any(tmp_path: Path) -> None:
    port = find_unused_port()
    with upstream() as first, upstream() as second:
        file = write_site(tmp_path, port=port, upstreams=(first, second))
        with subprocess.Popen(
            ["nginx", "-p", tmp_path, "-c", file, "-e", tmp_path / "error.log"]
        ) as nginx:
            try:
                eventually(lambda: nginx.poll() is None and answers(port), what="nginx")
                token = {"Authorization": "Bearer one"}
                begun = send_request(port, "/mcp", token)[1]
                goes_on = token | {"Mcp-Session-Id": "7"}
                assert {send_request(port, "/mcp/agents/demo", goes_on)[1] for _ in range(5)} == {
                    begun
                }
                assert begun.endswith(" 127.0.0.1 bonobot.example.com")
                tokens = ({"Authorization": f"Bearer {number}"} for number in range(30))
                assert len({send_request(port, "/mcp", token)[1] for token in tokens}) == 2
                assert len({send_request(port, "/admin/", {})[1] for _ in range(30)}) == 2
                assert [send_request(port, path, {})[0] for path in ("/metrics", "/readyz")] == [
                    404,
                    404,
                ]
            finally:
                nginx.terminate()


@pytest.mark.nginx
def test_the_nginx_configuration_of_compose_is_valid(tmp_path: Path) -> None:
    for path in (DEPLOY / "nginx").glob("bonobot*.conf"):
        shutil.copy(path, tmp_path)
    (tmp_path / "mime.types").write_text("types {}\n", encoding="utf-8")
    text = (DEPLOY / "nginx" / "compose.conf").read_text(encoding="utf-8")
    # Names of containers are known among containers alone, and `resolve` to nginx from 1.27.3 on.
    text = text.replace("web:8000 resolve", "127.0.0.1:8000")
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid;\n{text}", encoding="utf-8")
    tested = subprocess.run(
        ["nginx", "-t", "-q", "-p", tmp_path, "-c", tmp_path / "nginx.conf", "-e", tmp_path / "e"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (tested.returncode, tested.stderr) == (0, "")
