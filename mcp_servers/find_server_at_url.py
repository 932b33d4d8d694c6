"""Find the server at a URL before it is added: transport, sign-in, and what it declares.

Nothing is stored. A URL without a path is also tried with `/mcp`, which most servers use.
"""

from dataclasses import dataclass, replace
from urllib.parse import urlsplit, urlunsplit

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.build_endpoint import build_account, build_endpoint
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.list_definitions import RawDefinition, ServerDeclarations
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.oauth_client.metadata import discover_authorization_server
from mcp_servers.oauth_client.types import OAuthAccount
from mcp_servers.server_config import ServerSpec, clean_server_spec
from mcp_servers.server_names import DEFAULT_NAME, suggest_server_name

COMMON_PATH = "/mcp"
NEEDS_SIGN_IN = "needs_reauth"


@dataclass(frozen=True)
class UrlCheck:
    """What was found at a URL: `url` is the one that answered.

    `needs_sign_in` says that it refused a request without credentials, or with this token;
    `has_oauth` that its authorization server was found.
    """

    url: str
    name: str
    definitions: tuple[RawDefinition, ...] = ()
    protocol_version: str = ""
    transport: str = ""
    needs_sign_in: bool = False
    has_oauth: bool = False

    @property
    def tools(self) -> list[RawDefinition]:
        """Return the tools among the definitions."""
        return [definition for definition in self.definitions if definition.kind == "tool"]


def find_server_at_url(
    principal: Principal, url: str, *, token: str = "", allow_private: bool = False
) -> UrlCheck:
    """Connect to a URL and list what the server declares.

    Raises the problems of `clean_server_spec`, and `UpstreamError` if no server answers.
    """
    principal.require(Action.MANAGE_SERVERS)
    endpoints = []
    for candidate in _list_candidates(url.strip()):
        spec = ServerSpec(
            name=DEFAULT_NAME,
            transport_type=Server.Transport.HTTP,
            endpoint_config={"url": candidate},
            allow_private=allow_private,
        )
        server = Server(
            organization_id=principal.organization_id,
            scope_id=principal.organization_id,
            **clean_server_spec(principal, spec).columns,
        )
        endpoint = replace(build_endpoint(server), name=urlsplit(candidate).netloc)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        account = replace(build_account(server, {}), grant="client_credentials")
        endpoints.append((replace(endpoint, headers=headers), account))
    result: UrlCheck = get_runtime().call(_check_first, endpoints)
    return result


def _list_candidates(url: str) -> list[str]:
    """Return the URLs to try, in order."""
    parts = urlsplit(url)
    if parts.path not in ("", "/") or parts.query:
        return [url]
    return [url, urlunsplit(parts._replace(path=COMMON_PATH))]


async def _check_first(endpoints: list[tuple[ServerEndpoint, OAuthAccount]]) -> UrlCheck:
    """Return the result of the first URL where a server answers; raise the first problem."""
    problems: list[UpstreamError] = []
    for endpoint, account in endpoints:
        try:
            declarations = await get_connection_pool().fetch_declarations(endpoint)
        except UpstreamError as problem:
            if problem.code == NEEDS_SIGN_IN:
                has_oauth = await _has_authorization_server(account)
                return UrlCheck(
                    endpoint.url,
                    suggest_server_name(endpoint.url),
                    needs_sign_in=True,
                    has_oauth=has_oauth,
                )
            problems.append(problem)
            if problem.http_status is None:  # nothing answers there on any path
                break
        else:
            return _build_result(endpoint, declarations)
        finally:
            await get_connection_pool().forget_server(endpoint.server_id)
    raise problems[0]


def _build_result(endpoint: ServerEndpoint, declarations: ServerDeclarations) -> UrlCheck:
    wire = replace(endpoint, discovery=declarations.discovery).wire
    return UrlCheck(
        endpoint.url,
        suggest_server_name(endpoint.url, str(declarations.server_info.get("name") or "")),
        definitions=declarations.items,
        protocol_version=declarations.protocol_version,
        transport="HTTP+SSE" if wire == "sse" else "Streamable HTTP",
    )


async def _has_authorization_server(account: OAuthAccount) -> bool:
    try:
        await discover_authorization_server(account)
    except Problem:
        return False
    return True
