"""Create, update, delete and check external issuers.

Changes are audited and take effect on the next call: issuers are governed rows, so cached tokens
of an older policy generation are verified again.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from bonobot.accounts.external_issuers import jwks
from bonobot.accounts.external_issuers.jwt_validation import GATEWAY_SCOPES
from bonobot.accounts.models import Issuer, Provider
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action, Role
from bonobot.accounts.tokens import constraints
from bonobot.core.http.egress import EgressDenied
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.admin_changes import describe_row, record_change

MAX_URL_LENGTH = 512
MAX_CLAIM_LENGTH = 255
MAX_ROLES = 100
MAX_ANNOUNCED = 20
OPTIONAL_CLAIMS = ("label_claim", "role_claim", "scope_claim")


def create_issuer(principal: Principal, **values: Any) -> Issuer:
    """Create an issuer; `name` and `url` are required.

    Raises `InvalidInput`, `EgressDenied` for a denied URL, `Conflict` (`issuer_taken`).
    """
    principal.require(Action.MANAGE_ISSUERS)
    issuer = Issuer(organization_id=principal.organization_id)
    _set_fields(issuer, {"name": "", "url": ""} | values)
    with _record_change(principal, issuer, "external_issuer_created", values):
        issuer.save(force_insert=True)
    return issuer


def update_issuer(principal: Principal, issuer: Issuer, **values: Any) -> None:
    """Update an issuer; raises like `create_issuer`."""
    principal.require(Action.MANAGE_ISSUERS)
    before = {name: getattr(issuer, name) for name in values if name in FIELD_CLEANERS}
    _set_fields(issuer, values)
    changed_values = {
        name: values[name] for name in before if before[name] != getattr(issuer, name)
    }
    if changed_values:
        with _record_change(principal, issuer, "external_issuer_updated", changed_values):
            issuer.save()


def delete_issuer(principal: Principal, issuer: Issuer) -> None:
    principal.require(Action.MANAGE_ISSUERS)
    with _record_change(principal, issuer, "external_issuer_deleted", {"url": issuer.url}):
        issuer.delete()


def check_issuer(principal: Principal, issuer: Issuer) -> int:
    """Fetch the issuer's keys and return their number; raises `IssuerUnreachable`."""
    principal.require(Action.MANAGE_ISSUERS)
    issuer_address = jwks.IssuerAddress(issuer.url, issuer.allow_private)
    return len(get_runtime().call(jwks.get_jwks_cache().fetch_keys, issuer_address).keys)


def list_announced_issuers() -> tuple[str, ...]:
    """Return the URLs of issuers that public metadata lists (a query)."""
    rows = Issuer.objects.enabled().filter(announced=True).order_by("name", "url")
    return tuple(rows.values_list("url", flat=True)[:MAX_ANNOUNCED])


def set_signer_fields(
    row: Issuer | Provider,
    noun: str,
    values: Mapping[str, Any],
    cleaners: Mapping[str, Callable[[str, Any], Any]],
) -> None:
    """Set the cleaned fields of a party whose tokens are checked with the keys that it publishes.

    Raises `InvalidInput`, and `EgressDenied` for a denied URL.
    """
    if unknown := sorted(set(values) - set(cleaners)):
        raise InvalidInput(
            format_message("{noun} has no writable field {name!r}.", noun=noun, name=unknown[0]),
            field=unknown[0],
            remedy=format_message(
                "Supported fields: {fields}.", fields=", ".join(sorted(cleaners))
            ),
        )
    for name, value in values.items():
        setattr(row, name, cleaners[name](name, value))
    try:
        jwks.check_issuer_url(row.url, allow_private=row.allow_private)
    except EgressDenied as problem:
        problem.field = "url"
        raise
    if not (row.role or row.role_claim):
        raise InvalidInput(
            "No user would get a role.",
            field="role",
            remedy="Set a role for everyone, or name the claim that contains the role.",
        )


def _set_fields(issuer: Issuer, values: Mapping[str, Any]) -> None:
    set_signer_fields(issuer, format_message("An external issuer"), values, FIELD_CLEANERS)
    conflicting_issuers = Issuer.objects.filter(url=issuer.url).exclude(pk=issuer.pk)
    if conflicting_issuers.exists():
        raise Conflict(
            "This issuer is already registered. It can belong to only one organization.",
            code="issuer_taken",
            field="url",
            remedy="Change the existing external issuer instead.",
        )


def _build_text_cleaner(max_length: int, *, blank: bool) -> Callable[[str, Any], str]:
    def clean_text(name: str, value: Any) -> str:
        text = str(value or "").strip()
        if len(text) > max_length or not (text or blank):
            raise InvalidInput(
                format_message(
                    "`{name}` must have {value} to {most} characters.",
                    name=name,
                    value=0 if blank else 1,
                    most=max_length,
                ),
                field=name,
                remedy="Use a shorter value." if text else "Enter a value.",
            )
        return text

    return clean_text


def _clean_role(name: str, value: Any) -> str:
    if value and value not in set(Role):
        raise InvalidInput(
            format_message("Unknown role {value!r}.", value=value),
            field=name,
            remedy=format_message("Use one of: {values}.", values=", ".join(Role)),
        )
    return str(value or "")


def _clean_roles(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value or {}, Mapping) or len(value or {}) > MAX_ROLES:
        raise InvalidInput(
            "Roles must be an object that maps claim values to roles.",
            field=name,
            remedy=format_message(
                'Use {{"bonobot-operators": "operator"}}, with at most {most_roles} values.',
                most_roles=MAX_ROLES,
            ),
        )
    return {
        str(claim_value)[:MAX_CLAIM_LENGTH]: _clean_role(name, role) or ""
        for claim_value, role in dict(value or {}).items()
    }


def _clean_scopes(name: str, value: Any) -> list[str]:
    scopes: list[str] = constraints.clean_constraints({"scopes": value})["scopes"]
    if unknown := sorted(set(scopes) - set(GATEWAY_SCOPES)):
        raise InvalidInput(
            format_message(
                "{name!r} can't be assigned to tokens of an external issuer.", name=unknown[0]
            ),
            field=name,
            remedy=format_message(
                "Choose from: {scopes}. REST accepts only Bonobot tokens.",
                scopes=", ".join(GATEWAY_SCOPES),
            ),
        )
    return scopes


def _clean_token_constraint(name: str, value: Any) -> Any:
    return constraints.clean_constraints({name: value})[name]


def _clean_boolean(_name: str, value: Any) -> bool:
    return bool(value)


FIELD_CLEANERS: dict[str, Callable[[str, Any], Any]] = {
    "name": _build_text_cleaner(constraints.MAX_NAME_LENGTH, blank=False),
    "url": _build_text_cleaner(MAX_URL_LENGTH, blank=False),
    "audience": _build_text_cleaner(MAX_URL_LENGTH, blank=True),
    "subject_claim": _build_text_cleaner(MAX_CLAIM_LENGTH, blank=False),
    **dict.fromkeys(OPTIONAL_CLAIMS, _build_text_cleaner(MAX_CLAIM_LENGTH, blank=True)),
    "role": _clean_role,
    "roles": _clean_roles,
    "scopes": _clean_scopes,
    "agent_ids": _clean_token_constraint,
    "calls_per_minute": _clean_token_constraint,
    **dict.fromkeys(("any_type", "allow_private", "announced", "enabled"), _clean_boolean),
}


def _record_change(
    principal: Principal, issuer: Issuer, action: str, values: Mapping[str, Any]
) -> AbstractContextManager[Any]:
    details = {
        name: FIELD_CLEANERS[name](name, value) for name, value in values.items() if name != "name"
    }
    return record_change(
        **describe_row("issuer", issuer), actor=principal.actor, action=action, details=details
    )
