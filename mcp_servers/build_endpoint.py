"""Build endpoints from rows, with decrypted secrets."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings

from bonobot.accounts.models import Organization
from mcp_servers.bundles.archive import BundleFolder
from mcp_servers.bundles.services import fill_bundle_folder, prepare_bundle_folder
from mcp_servers.client import sandbox
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.folder_rules import SYSTEM_ONLY
from mcp_servers.client.resource_limits import ProcessLimits
from mcp_servers.client.sandbox import NO_SANDBOX, ServerSandbox
from mcp_servers.client_capabilities import get_allowed_requests
from mcp_servers.models import Secret, Server
from mcp_servers.oauth_client.access_tokens import OAuthEndpoint
from mcp_servers.oauth_client.types import (
    DPOP_CHOICES,
    GRANT_TYPES,
    PER_CHOICES,
    OAuthAccount,
    parse_scopes,
)
from mcp_servers.presets.allowed_folders import build_folder_rule, list_allowed_folders

API_KEY_HEADER = "X-API-Key"
# Packages that keep, for example, a browser or a train of thought for each client.
STATEFUL_PACKAGES = (
    *("@playwright/mcp", "chrome-devtools-mcp", "server-puppeteer", "browser-use"),
    *("server-sequential-thinking", "desktop-commander"),
)


def build_endpoint(server: Server) -> ServerEndpoint:
    """Return the endpoint of `server` with decrypted secrets (two queries at most).

    Raises `UnreadableSecret` if a value can't be decrypted with the current keys.
    """
    secrets: dict[str, dict[str, str]] = {
        key_placement: {} for key_placement in Secret.Placement.values
    }
    for secret in server.secrets.all():
        secrets[secret.placement][secret.name] = secret.value.open()
    config: dict[str, Any] = server.endpoint_config
    bundle = None
    if config.get("bundle"):
        bundle = prepare_bundle_folder(server.organization_id, config["bundle"])
        config, env = fill_bundle_folder(config, secrets[Secret.Placement.ENV], bundle)
        secrets[Secret.Placement.ENV] = env
    credentials = secrets[Secret.Placement.AUTH]
    common: dict[str, Any] = {
        "server_id": server.pk,
        "name": server.name,
        "organization_id": server.organization_id,
        "transport": server.transport_type,
        "command": config.get("command", ""),
        "args": tuple(config.get("args", ())),
        "env": secrets[Secret.Placement.ENV],
        "env_exceptions": frozenset(server.env_exceptions),
        "cwd": config.get("cwd") or None,
        "bundle": bundle,
        "folder_rule": build_folder_rule(server.organization_id)
        if config.get("cwd")
        else SYSTEM_ONLY,
        "url": config.get("url", ""),
        "headers": secrets[Secret.Placement.HEADER] | _build_auth_headers(server, credentials),
        "operations": frozenset(config.get("operations", ())),
        "allow_private": server.allow_private,
        "allowed_requests": get_allowed_requests(server),
        "era": _parse_era(server.era),
        "keeps_session_state": keeps_session_state(server),
        "discovery": server.discovery,
        "connect_s": settings.BONOBOT_CONNECT_S,
        "read_s": settings.BONOBOT_READ_S,
        "max_body": settings.BONOBOT_MAX_BODY,
        "max_definitions": settings.BONOBOT_MAX_DEFINITIONS,
        **_build_process_config(server),
        "sandbox": _build_organization_sandbox(
            server, tuple(config.get("args", ())), secrets[Secret.Placement.ENV], bundle
        ),
    }
    if key_placement := _get_key_placement(server):
        common[key_placement] = {server.auth_config.get("header", ""): credentials.get("key", "")}
    if server.auth_type == Server.Auth.OAUTH2:
        return OAuthEndpoint(**common, account=build_account(server, credentials))
    return ServerEndpoint(**common)


def _build_process_config(server: Server) -> dict[str, Any]:
    """Return the endpoint fields for the process of a stdio server."""
    return {
        "start_s": settings.BONOBOT_START_S,
        "packages": str(get_sandbox_folder(server.organization_id) / "packages"),
        "install_s": settings.BONOBOT_INSTALL_S,
        "limits": _build_limits(),
        "sandbox_mode": _build_sandbox(server),
    }


def _build_limits() -> ProcessLimits:
    return ProcessLimits(
        memory_mib=settings.BONOBOT_STDIO_MEMORY_MIB,
        processes=settings.BONOBOT_STDIO_PROCESSES,
        open_files=settings.BONOBOT_STDIO_OPEN_FILES,
        cpu_s=settings.BONOBOT_STDIO_CPU_S,
    )


def get_sandbox_folder(organization_id: UUID) -> Path:
    """Return the folder for the homes and caches of an organization's sandboxes."""
    return Path(settings.BONOBOT_VAR) / "sandboxes" / str(organization_id)


def _get_home(organization_id: UUID, server_id: UUID) -> Path:
    """Return the home of a server: in a shared one, it could configure and read the others."""
    return get_sandbox_folder(organization_id) / "homes" / str(server_id)


def delete_server_home(organization_id: UUID, server_id: str) -> None:
    """Delete the home of a server's sandbox on this host."""
    shutil.rmtree(_get_home(organization_id, UUID(server_id)), ignore_errors=True)


def _build_organization_sandbox(
    server: Server, args: tuple[str, ...], env: Mapping[str, str], bundle: BundleFolder | None
) -> sandbox.Sandbox | None:
    """Return the sandbox of a stdio server; None if it doesn't run in one."""
    if server.transport_type != Server.Transport.STDIO:
        return None
    if server.sandbox != Server.SandboxMode.SANDBOX:
        return None
    network: Any = server.network
    rule = build_folder_rule(server.organization_id)
    roots = [
        root
        for root in list_allowed_folders(server.organization_id)
        if not rule.find_refusal(str(root))
    ]
    return sandbox.Sandbox(
        home=str(_get_home(server.organization_id, server.pk)),
        network=network,
        folders=sandbox.list_named_folders((*args, *env.values()), roots),
        hidden=_list_hidden_folders(),
        bundle=bundle.path if bundle else "",
        required=sandbox.find_sandbox_fault() is not None and Organization.objects.count() > 1,
        allow_private=server.allow_private,
    )


def _build_sandbox(server: Server) -> ServerSandbox:
    """Return the sandbox of a server outside of its organization's sandbox."""
    if server.sandbox == Server.SandboxMode.SANDBOX:
        return NO_SANDBOX
    kind: Any = server.sandbox
    network: Any = server.network
    return ServerSandbox(kind=kind, network=network, hidden=_list_hidden_folders())


def _list_hidden_folders() -> tuple[str, ...]:
    """Return the folders with our keys, database and tokens, which servers must not even read."""
    folders = (str(settings.BONOBOT_VAR), settings.BONOBOT_WORKLOAD_TOKENS)
    return tuple(folder for folder in folders if folder)


def build_account(server: Server, credentials: Mapping[str, str]) -> OAuthAccount:
    """Return the OAuth account of a server, given its decrypted credentials."""
    config: dict[str, Any] = server.auth_config
    account = OAuthAccount(
        server_id=server.pk,
        organization_id=server.organization_id,
        server_name=server.name,
        url=server.endpoint_config.get("url", ""),
        allow_private=server.allow_private,
        subject=server.organization_id,
        grant=config.get("grant") or GRANT_TYPES[0],
        per=config.get("per") or PER_CHOICES[0],
        client_id=config.get("client_id") or "",
        client_secret=credentials.get("client_secret", ""),
        private_key=credentials.get("private_key", ""),
        key_id=config.get("key_id") or "",
        scopes=parse_scopes(config.get("scopes")),
        token_url=config.get("token_url") or "",
        issuer=config.get("issuer") or "",
        workload_token=config.get("workload_token") or "",
        dpop=config.get("dpop") or DPOP_CHOICES[0],
    )
    return replace(account, subject=None) if account.by_person else account


def _parse_era(stored_era: str) -> Any:
    return stored_era if stored_era in ("modern", "handshake") else None


def _build_auth_headers(server: Server, values: dict[str, str]) -> dict[str, str]:
    """Return the authentication header, if the server needs one."""
    if server.auth_type == Server.Auth.BEARER and values.get("token"):
        return {"Authorization": f"Bearer {values['token']}"}
    if (
        server.auth_type == Server.Auth.API_KEY
        and values.get("key")
        and not _get_key_placement(server)
    ):
        return {server.auth_config.get("header") or API_KEY_HEADER: values["key"]}
    return {}


def _get_key_placement(server: Server) -> str:
    """Return the endpoint field that carries the API key; "" if it is a header."""
    request_parts = {"query": "query", "cookie": "cookies"}
    if server.auth_type != Server.Auth.API_KEY:
        return ""
    return request_parts.get(server.auth_config.get("in", ""), "")


def keeps_session_state(server: Server) -> bool:
    """Tell whether the clients of a server's process must not share it."""
    if server.session_state != Server.SessionState.AUTO:
        return bool(server.session_state == Server.SessionState.KEPT)
    command_line = (
        server.endpoint_config.get("command", ""),
        *server.endpoint_config.get("args", ()),
    )
    return any(package in str(word) for word in command_line for package in STATEFUL_PACKAGES)
