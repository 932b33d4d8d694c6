"""`bonobot mcp presets` and `save-preset`."""

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.models import Preset, Server
from mcp_servers.presets import catalog, check_packages
from mcp_servers.presets.catalog import load_catalog
from mcp_servers.presets.check_packages import resolve
from mcp_servers.presets.sync_catalog import load_presets
from tests import admin_client

pytestmark = pytest.mark.django_db(transaction=True)


class Registry(BaseHTTPRequestHandler):
    """A registry with every package except Memory's; requests for Git's fail."""

    def do_HEAD(self) -> None:
        status = 404 if "server-memory" in self.path else 503 if "git" in self.path else 200
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Don't log."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a local registry for the check."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        use_registry(monkeypatch, server.server_address[1])
        yield
        server.shutdown()
        thread.join()


def use_registry(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    url = f"http://127.0.0.1:{port}"

    async def resolve_locally(entries):
        return await resolve(entries, registries={"npm": url, "pypi": url}, allow_private=True)

    monkeypatch.setattr(check_packages, "resolve", resolve_locally)


def states(result) -> dict[str, str]:
    return {row["slug"]: row["state"] for row in result.json}


def test_an_empty_catalog_prints_how_to_load_it_and_is_loaded_once(bonobot):
    Preset.objects.all().delete()
    assert "bonobot mcp presets --load" in bonobot("mcp", "presets").out
    assert len(bonobot("mcp", "presets", "--load", "--json").json["added"]) == len(load_catalog())
    assert bonobot("mcp", "presets", "--load").out.strip() == "0 added, 0 changed, 0 removed"
    assert len(bonobot("mcp", "presets", "--json").json) == len(load_catalog())


def test_the_list_shows_the_package_names_that_a_preset_replaces(bonobot):
    (row,) = bonobot("mcp", "presets", "aws-lambda", "--json").json
    assert row["replaces"] == ["@aws/mcp-server-lambda"]
    assert "@aws/mcp-server-lambda" in bonobot("mcp", "presets", "aws-lambda").out


@pytest.mark.parametrize("option", ["--check", "--load"])
def test_an_invalid_catalog_is_an_error_and_not_a_traceback(bonobot, monkeypatch, option, tmp_path):
    (tmp_path / "catalog.json").write_text('{"presets": [{"slug": "time"}]}', encoding="utf-8")
    monkeypatch.setattr(catalog, "CATALOG_FILE", tmp_path / "catalog.json")
    load_catalog.cache_clear()  # an exception isn't cached
    result = bonobot("mcp", "presets", option, "--json")
    assert (result.status, result.error["code"]) == (1, "invalid_catalog")
    assert "(preset 'time')" in result.error["detail"]


@pytest.mark.parametrize("option", [(), ("--check",)])
def test_an_unknown_preset_is_reported_with_its_name(bonobot, option):
    result = bonobot("mcp", "presets", "nothing", *option, "--json")
    assert (result.status, result.error["code"], result.error["field"]) == (
        1,
        "not_found",
        "PRESET",
    )


def test_a_check_succeeds_if_all_packages_resolve(bonobot, registry):
    result = bonobot("mcp", "presets", "--check", "time", "azure", "linear", "--json")
    assert (result.status, states(result)) == (
        0,
        {"time": "resolves", "azure": "resolves", "linear": "documented"},
    )


@pytest.mark.parametrize(("slug", "state"), [("memory", "gone"), ("git", "unknown")])
def test_a_check_exits_with_1_if_a_package_doesnt_resolve(bonobot, registry, slug, state):
    result = bonobot("mcp", "presets", "--check", "time", slug, "--json")
    assert (result.status, states(result)) == (1, {"time": "resolves", slug: state})


def test_missing_packages_are_marked_in_the_gallery(bonobot, registry, monkeypatch):
    bonobot("mcp", "presets", "--check", "time", "memory")
    browser = admin_client.sign_in(Organization.objects.get(), Role.OPERATOR)
    gallery = browser.get("mcp_servers_server_presets")
    assert gallery.count("package not found") == 1
    assert "package wasn't found in the registry" in browser.get(
        "mcp_servers_server_preset", "memory"
    )
    assert "package wasn't found in the registry" not in browser.get(
        "mcp_servers_server_preset", "time"
    )
    assert "package not found" in browser.get("mcp_servers_preset_changelist", q="memory")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        use_registry(monkeypatch, listener.getsockname()[1])
        bonobot("mcp", "presets", "--check", "memory")
    assert (
        Preset.objects.from_platform().get(slug="memory").gone
    )  # an unavailable registry changes nothing
    Preset.objects.from_platform().update(proof={})  # like a release with another version
    load_presets()
    assert not Preset.objects.from_platform().get(slug="memory").gone


def test_an_unavailable_registry_marks_no_package_as_missing(bonobot, monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        use_registry(monkeypatch, listener.getsockname()[1])
        result = bonobot("mcp", "presets", "--check", "time")
    assert result.status == 1
    assert "0 packages not found. 1 couldn't be checked." in result.out


def test_a_saved_preset_requires_the_secrets_of_its_server(bonobot):
    url = "https://mcp.example.com/mcp"
    header = ("--header", "X-Team=t0p-secret", "--bearer", "b3arer")
    bonobot("mcp", "add", "docs", "--url", url, *header)
    assert Server.objects.get().name == "docs"
    result = bonobot("mcp", "save-preset", "docs", "Our documentation", "--json")
    assert result.status == 0, result.err
    assert [p["name"] for p in result.json["parameters"]] == ["TOKEN", "X_TEAM"]
    assert all(p["secret"] and p["required"] for p in result.json["parameters"])
    row = Preset.objects.get(slug="our-documentation")
    assert row.endpoint_config == {"url": url, "headers": {"X-Team": "${X_TEAM}"}}
    assert row.auth_config == {"token": "${TOKEN}"}
    text = f"{row.endpoint_config} {row.auth_config} {row.parameters} {result.out}"
    assert "t0p-secret" not in text
    assert "b3arer" not in text

    second = bonobot("mcp", "save-preset", "docs", "Our documentation", "--json")
    assert (second.status, second.error["code"]) == (1, "name_taken")
    assert "own" in bonobot("mcp", "presets").out
