"""Create, update and delete model endpoints, with the checks of each kind."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from django.utils.text import slugify

from agents.llm.interface import ModelEndpointConfig
from agents.llm.provider_kinds import PROVIDER_KINDS
from agents.llm.providers.registry import find_missing_package
from agents.models import ModelEndpoint
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.crypto.secret_addresses import check_kept_secrets, normalize_origin
from bonobot.core.db.changed_fields import save_validated
from bonobot.core.http.egress import EgressDenied, check_url
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.text.masking import MASK
from bonobot.ledger.audit.admin_changes import record_change

Kind = ModelEndpoint.Kind

# The kinds that need no base URL.
KINDS_WITH_OWN_URL = tuple(
    kind for kind in Kind if PROVIDER_KINDS[kind].default_url and kind != Kind.OPENAI
)
# The region becomes part of a host name.
REGION = re.compile(r"[a-z][a-z0-9]{0,14}(-[a-z0-9]{1,15}){0,4}")
API_VERSION = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(-preview)?|latest|preview")
# The smallest and largest values of numbers; prices are micro-dollars per million tokens.
BOUNDS = {
    "timeout_s": (1, 3_600),
    "retries": (0, 10),
    **dict.fromkeys(("max_tokens", "context_window"), (1, 10_000_000)),
    **dict.fromkeys(
        ("input_price", "output_price", "cache_read_price", "cache_write_price"), (0, 2**53)
    ),
}
# Maximum length of a fallback chain, including the first endpoint.
MAX_CHAIN_LENGTH = 4


@dataclass(frozen=True, kw_only=True)
class ModelEndpointSpec:
    """The settings of a model endpoint; the mask as API key keeps the stored key."""

    name: str
    kind: str = ModelEndpoint.Kind.OPENAI
    base_url: str = ""
    model: str = ""
    api_key: str = MASK
    allow_private: bool = False
    timeout_s: int = 120
    input_price: int | None = None
    output_price: int | None = None
    cache_read_price: int | None = None
    cache_write_price: int | None = None
    region: str = ""
    access_key_id: str = ""
    api_version: str = ""
    max_tokens: int | None = None
    context_window: int | None = None
    thinking: str = ""
    thinking_summaries: bool = False
    native_tools: bool = True
    image_input: bool = False
    pdf_input: bool = False
    prompt_caching: bool = True
    retries: int = 2
    fallback: ModelEndpoint | None = None
    fallback_on: str = ModelEndpoint.FallbackOn.UNAVAILABLE
    selectable: bool = False


def build_spec(endpoint: ModelEndpoint) -> ModelEndpointSpec:
    """Return the stored settings of a model endpoint, with the mask as API key."""
    names = {spec_field.name for spec_field in fields(ModelEndpointSpec)} - {"api_key"}
    return ModelEndpointSpec(**{name: getattr(endpoint, name) for name in names})


def save_endpoint(
    principal: Principal, spec: ModelEndpointSpec, endpoint: ModelEndpoint | None = None
) -> ModelEndpoint:
    """Create or update a model endpoint, checked by the rules of its kind.

    Raises `InvalidInput`, `Conflict` (`name_taken`), `Forbidden`, `EgressDenied`.
    """
    principal.require(Action.MANAGE_AGENTS)
    check_endpoint(principal, spec, endpoint)
    action = "model_endpoint_updated" if endpoint else "model_endpoint_created"
    endpoint = endpoint or ModelEndpoint(organization_id=principal.organization_id)
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name != "api_key":
            setattr(endpoint, field.name, value)
        elif value != MASK:
            endpoint.api_key = value
    endpoint.slug = endpoint.slug or slugify(spec.name)[:64]
    with record_change(**_build_audit_fields(principal, endpoint, action)):
        save_validated(endpoint)
    return endpoint


def delete_endpoint(principal: Principal, endpoint: ModelEndpoint) -> None:
    """Delete a model endpoint; raises `Conflict` (code `in_use`) while it is used."""
    principal.require(Action.MANAGE_AGENTS)
    user_names = [*endpoint.agents.values_list("name", flat=True)[:5]]
    user_names += endpoint.fallback_of.values_list("name", flat=True)[:5]
    if user_names:
        raise Conflict(
            format_message("The model endpoint is used by: {users}.", users=", ".join(user_names)),
            code="in_use",
            remedy="Choose another model endpoint for these first.",
        )
    with record_change(**_build_audit_fields(principal, endpoint, "model_endpoint_deleted")):
        endpoint.delete()


def _build_audit_fields(
    principal: Principal, endpoint: ModelEndpoint, action: str
) -> dict[str, Any]:
    return {
        "organization_id": endpoint.organization_id,
        "actor": principal.actor,
        "action": action,
        "resource_type": endpoint._meta.model_name,
        "resource_id": str(endpoint.pk),
        "resource_name": endpoint.name,
        "details": {},
    }


def check_endpoint(
    principal: Principal, spec: ModelEndpointSpec, row: ModelEndpoint | None
) -> None:
    """Raise `InvalidInput`, `Forbidden` or `EgressDenied` if the specification is invalid."""
    if spec.allow_private and not (row and row.allow_private):
        principal.require(Action.ALLOW_PRIVATE_ADDRESS)
    _check_bounds(spec)
    _check_fallback(principal, spec, row)
    if spec.kind == Kind.OFFLINE:
        return
    if remedy := find_missing_package(spec.kind):
        raise InvalidInput(
            format_message(
                "Endpoints of the kind `{kind}` need a library that isn't installed.",
                kind=spec.kind,
            ),
            code="provider_missing",
            field="kind",
            remedy=format_message("Install it where Bonobot runs: {remedy}", remedy=remedy),
        )
    _check_region(spec)
    _check_url(spec)
    _check_key_origin(spec, row)
    if not spec.model.strip():
        raise InvalidInput(
            "The model endpoint needs a model.", field="model", remedy="Enter the model name."
        )
    if check := _KEY_CHECKS.get(spec.kind):
        check(spec, _has_key(spec, row))


def build_endpoint(row: ModelEndpoint) -> ModelEndpointConfig:
    """Return the configuration for the model layer, with the API key decrypted."""
    field_names = {field.name for field in fields(ModelEndpointConfig)} - {"id", "kind", "api_key"}
    values = {name: getattr(row, name) for name in field_names}
    key = row.api_key.open() if row.api_key else ""
    return ModelEndpointConfig(kind=row.kind, id=str(row.pk), api_key=key, **values)


def build_fallback_chain(endpoint: Any) -> list[Any]:
    """Return an endpoint and its fallbacks, in order."""
    chain: list[Any] = []
    while endpoint is not None and endpoint not in chain and len(chain) < MAX_CHAIN_LENGTH:
        chain.append(endpoint)
        endpoint = endpoint.fallback
    return chain


def _check_bounds(spec: ModelEndpointSpec) -> None:
    for name, (smallest, largest) in BOUNDS.items():
        value = getattr(spec, name)
        if value is not None and not smallest <= value <= largest:
            raise InvalidInput(
                format_message("{value} is out of range.", value=value),
                field=name,
                remedy=format_message(
                    "Use a whole number from {smallest} to {largest}.",
                    smallest=smallest,
                    largest=largest,
                ),
            )


def _check_url(spec: ModelEndpointSpec) -> None:
    if not spec.base_url and spec.kind in KINDS_WITH_OWN_URL:
        return
    try:
        check_url(spec.base_url, allow_private=spec.allow_private)
    except EgressDenied as problem:
        problem.field = "base_url"
        raise


def _check_key_origin(spec: ModelEndpointSpec, row: ModelEndpoint | None) -> None:
    """Raise if a stored key would be sent to a host that it was not entered for."""
    if row is not None and row.api_key and spec.api_key == MASK:
        check_kept_secrets(
            ["api_key"],
            {"base_url": _get_provider_origin(row)},
            {"base_url": _get_provider_origin(spec)},
        )


def _get_provider_origin(endpoint: ModelEndpointSpec | ModelEndpoint) -> str:
    """Return the origin; all regions of a provider have the same one."""
    return normalize_origin(
        endpoint.base_url or PROVIDER_KINDS[endpoint.kind].default_url.replace("{region}", "region")
    )


def _check_region(spec: ModelEndpointSpec) -> None:
    if spec.kind == Kind.BEDROCK and not spec.region:
        raise InvalidInput(
            "Amazon Bedrock needs a region.",
            field="region",
            remedy="Enter the region that serves the model, such as eu-central-1.",
        )
    if spec.region and not REGION.fullmatch(spec.region):
        raise InvalidInput(
            format_message("{region!r} isn't a valid region.", region=spec.region),
            field="region",
            remedy="Use the format eu-central-1.",
        )
    if spec.api_version and not API_VERSION.fullmatch(spec.api_version):
        raise InvalidInput(
            format_message(
                "{api_version!r} isn't a valid API version.", api_version=spec.api_version
            ),
            field="api_version",
            remedy="Use the format 2024-10-21, or omit it for Azure's v1 API.",
        )


def _has_key(spec: ModelEndpointSpec, row: ModelEndpoint | None) -> bool:
    return bool(row and row.api_key) if spec.api_key == MASK else bool(spec.api_key)


def _check_bedrock(spec: ModelEndpointSpec, has_key: bool) -> None:
    if spec.access_key_id and not has_key:
        raise InvalidInput(
            "The access key ID has no secret access key.",
            field="api_key",
            remedy="Enter the secret access key, or use only a Bedrock API key without an ID.",
        )


def _check_vertex(spec: ModelEndpointSpec, has_key: bool) -> None:
    if not has_key or (spec.api_key != MASK and not _is_service_account(spec.api_key)):
        raise InvalidInput(
            "Vertex AI needs a service account.",
            field="api_key",
            remedy="Paste the service account's JSON key file into this field, on one line.",
        )


def _is_service_account(text: str) -> bool:
    try:
        key_data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    required_fields = {"project_id", "client_email", "private_key"}
    return isinstance(key_data, dict) and key_data.keys() >= required_fields


_KEY_CHECKS: dict[str, Callable[[ModelEndpointSpec, bool], None]] = {
    Kind.BEDROCK: _check_bedrock,
    Kind.VERTEX: _check_vertex,
}


def _check_fallback(
    principal: Principal, spec: ModelEndpointSpec, row: ModelEndpoint | None
) -> None:
    fallbacks = build_fallback_chain(spec.fallback)
    if spec.fallback and spec.fallback.organization_id != principal.organization_id:
        raise InvalidInput(
            "The model endpoint doesn't exist.",
            field="fallback",
            remedy="Choose one of this organization's endpoints.",
        )
    if row is not None and row in fallbacks:
        raise InvalidInput(
            "The model endpoint would be its own fallback.",
            code="fallback_cycle",
            field="fallback",
            remedy="Choose an endpoint that doesn't fall back to this one.",
        )
    above_count = _count_endpoints_above(row) if row is not None else 0
    if above_count + 1 + len(fallbacks) > MAX_CHAIN_LENGTH:
        raise InvalidInput(
            format_message(
                "A fallback chain can have at most {limit} endpoints.",
                limit=MAX_CHAIN_LENGTH,
            ),
            code="fallback_too_long",
            field="fallback",
            remedy="Choose an endpoint with a shorter fallback chain.",
        )


def _count_endpoints_above(row: ModelEndpoint) -> int:
    """Return the length of the longest chain of endpoints that fall back to this one."""
    level, count = [row.pk], 0
    while level and count <= MAX_CHAIN_LENGTH:
        level = list(ModelEndpoint.objects.filter(fallback__in=level).values_list("pk", flat=True))
        count += bool(level)
    return count


def fill_context_window(endpoint: ModelEndpointConfig) -> ModelEndpointConfig:
    """Return the endpoint with its context window, by default the published one of its model."""
    if endpoint.context_window is not None or endpoint.kind == "offline":
        return endpoint
    return replace(endpoint, context_window=_find_context_window(endpoint.model, endpoint.url))


@lru_cache(maxsize=256)
def _find_context_window(model: str, url: str) -> int | None:
    from genai_prices.data_snapshot import get_snapshot  # late: it takes 0.2 s to load

    try:
        _, model_info = get_snapshot().find_provider_model(model, None, None, url)
    except (LookupError, ValueError):
        return None
    return model_info.context_window
