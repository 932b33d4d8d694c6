"""Settings of the authorization server and Django OAuth Toolkit."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from bonobot.core import environment

LIBRARY = "oauth2_provider"
HOUR, DAY = 3_600, 86_400
# Warns of `http` redirect URIs, which `redirect_uris` allows on loopback only.
SILENCED_CHECKS = ["oauth2_provider.W008"]
DEFAULT_REDIRECT_SCHEMES = ("cursor", "vscode", "vscode-insiders")


def read_oauth_settings() -> tuple[bool, bool, bool, tuple[str, ...]]:
    """Return whether the server is enabled, accepts client id metadata documents and dynamic
    registration, and the custom redirect schemes.

    Raises `ImproperlyConfigured` if it is enabled without the extra or without any way to
    identify clients.
    """
    enabled = environment.read_flag("BONOBOT_OAUTH", False)
    if enabled and find_spec(LIBRARY) is None:
        raise ImproperlyConfigured(
            "`BONOBOT_OAUTH` needs the extra `oauth`: pip install 'bonobot[oauth]'."
        )
    documents = environment.read_flag("BONOBOT_OAUTH_DOCUMENTS", True)
    registration = environment.read_flag("BONOBOT_OAUTH_REGISTRATION", True)
    if enabled and not (documents or registration):
        raise ImproperlyConfigured(
            "Without `BONOBOT_OAUTH_DOCUMENTS` and `BONOBOT_OAUTH_REGISTRATION` no program can say "
            "who it is: switch one of them on, or `BONOBOT_OAUTH` off."
        )
    return (
        enabled,
        documents,
        registration,
        environment.read_names("BONOBOT_OAUTH_SCHEMES", DEFAULT_REDIRECT_SCHEMES),
    )


def build_installed_apps(enabled: bool) -> list[str]:
    return [LIBRARY, "bonobot.oauth_server"] if enabled else []


def build_scheduled_tasks(enabled: bool) -> tuple[tuple[str, str, int], ...]:
    """Return scheduled tasks as (name, task, period in seconds)."""
    return (
        (("prune OAuth clients", "bonobot.oauth_server.tasks.prune_oauth_clients", HOUR),)
        if enabled
        else ()
    )


def build_toolkit_settings(issuer: str, schemes: Sequence[str], documents: bool) -> dict[str, Any]:
    """Return the strictest settings of the toolkit."""
    return {
        "OIDC_ISS_ENDPOINT": issuer,
        "OAUTH2_VALIDATOR_CLASS": "bonobot.oauth_server.request_validator.OAuthRequestValidator",
        # Authorization codes and refresh tokens only.
        "OAUTH2_SERVER_CLASS": "oauthlib.oauth2.WebApplicationServer",
        "SCOPES": dict.fromkeys(("mcp:tools", "mcp:agents", "mcp:manage"), ""),
        # The lifetimes of codes, access tokens and unused grants (`get_oauth_lifetime`).
        "AUTHORIZATION_CODE_EXPIRE_SECONDS": 60,
        "ACCESS_TOKEN_EXPIRE_SECONDS": HOUR,
        "REFRESH_TOKEN_EXPIRE_SECONDS": 30 * DAY,
        "ROTATE_REFRESH_TOKEN": True,
        "REFRESH_TOKEN_REUSE_PROTECTION": True,
        "REFRESH_TOKEN_GRACE_PERIOD_SECONDS": 0,
        "PKCE_REQUIRED": True,
        "ALLOWED_REDIRECT_URI_SCHEMES": ["https", "http", *schemes],
        "ALLOW_LOCALHOST_LOOPBACK": True,
        "ALLOW_URI_WILDCARDS": False,
        "CIMD_ENABLED": documents,
        "CIMD_METADATA_FETCHER": (
            "bonobot.oauth_server.client_metadata_documents.ClientMetadataFetcher"
        ),
        "CIMD_REGISTRATION_PERMISSION_CLASSES": (
            "bonobot.oauth_server.client_metadata_documents.ConsentPagePermission",
        ),
        "DCR_ENABLED": False,  # we have our own registration: rate limited, public clients only
        **{
            f"COMPLIANT_BCP_RFC9700_{rule}": True
            for rule in (
                *("IMPLICIT_GRANT", "PASSWORD_GRANT", "PKCE_METHOD", "ACCESS_TOKEN_TRANSPORT"),
                *("AUTHZ_RESPONSE_ISS", "TOKEN_STORAGE", "REFRESH_TOKEN", "REDIRECT_URI_MATCHING"),
                "PKCE_REQUIRED",
            )
        },
    }
