"""The command group `models`: list, add, set, test and remove model endpoints."""

import argparse
from dataclasses import fields
from typing import Any

from agents.model_endpoints.services import ModelEndpointSpec, delete_endpoint, save_endpoint
from agents.model_endpoints.try_endpoint import try_endpoint
from agents.models import ModelEndpoint
from bonobot.core.cli.command_group import (
    CommandContext,
    CommandVerb,
    build_table,
    expand_variables,
)
from bonobot.core.text.masking import MASK

# Fields of the specification that have an option of the same name.
_OPTION_FIELDS = tuple(
    one.name for one in fields(ModelEndpointSpec) if one.name not in ("api_key", "fallback")
)


def _add_endpoint_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="as the provider names it")
    parser.add_argument("--url", dest="base_url", metavar="URL", help="default: the provider's own")
    parser.add_argument("--key", metavar="KEY", help="use ${VAR}; sealed, never shown again")
    parser.add_argument("--access-key-id", metavar="ID", help="Bedrock; its secret is the key")
    parser.add_argument("--region", metavar="R", help="Bedrock and Vertex AI")
    parser.add_argument("--api-version", metavar="V", help="Azure; default: its v1 API")
    parser.add_argument("--allow-private", action="store_true", default=None)
    parser.add_argument("--timeout", dest="timeout_s", type=int, metavar="S")
    parser.add_argument("--retries", type=int, metavar="N")
    parser.add_argument("--fallback", metavar="SLUG", help='asked where this one fails; "": none')
    parser.add_argument("--falls-over", choices=ModelEndpoint.FallsOver.values)
    parser.add_argument("--thinking", choices=ModelEndpoint.Thinking.values, metavar="EFFORT")
    parser.add_argument("--max-output-tokens", dest="max_tokens", type=int, metavar="N")
    parser.add_argument("--context-window", type=int, metavar="N", help="tokens of a whole request")
    parser.add_argument("--sees-images", action=argparse.BooleanOptionalAction)
    parser.add_argument("--native-tools", action=argparse.BooleanOptionalAction)
    parser.add_argument("--input-price", type=int, metavar="N", help="micro-dollars a million")
    parser.add_argument("--output-price", type=int, metavar="N", help="micro-dollars a million")


def _add_create_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--kind", default="openai", choices=ModelEndpoint.Kind.values)
    _add_endpoint_arguments(parser)


def _add_update_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG")
    parser.add_argument("--name")
    parser.add_argument("--kind", choices=ModelEndpoint.Kind.values)
    _add_endpoint_arguments(parser)


def _create_endpoint(cli: CommandContext, options: argparse.Namespace) -> None:
    endpoint = save_endpoint(cli.principal, _build_spec(cli, options, {"api_key": ""}))
    _show_endpoint(cli, endpoint, "is added")


def _update_endpoint(cli: CommandContext, options: argparse.Namespace) -> None:
    endpoint = _get_endpoint(cli, options.slug)
    stored_values: dict[str, Any] = {
        name: getattr(endpoint, name) for name in (*_OPTION_FIELDS, "fallback")
    }
    _show_endpoint(
        cli,
        save_endpoint(cli.principal, _build_spec(cli, options, stored_values), endpoint),
        "is changed",
    )


def _list_endpoints(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = ModelEndpoint.objects.for_organization(cli.principal.organization_id)
    serialized = [serialize_endpoint(row) for row in rows.select_related("fallback")]
    table_rows = [
        (
            endpoint["slug"],
            endpoint["kind"],
            endpoint["model"],
            endpoint["base_url"],
            endpoint["fallback"] or "",
        )
        for endpoint in serialized
    ]
    empty = "No model endpoints yet: bonobot models add NAME --kind KIND --model MODEL"
    cli.emit(
        serialized,
        build_table("SLUG", "KIND", "MODEL", "ADDRESS", "FALLBACK", rows=table_rows, empty=empty),
    )


def _add_slug_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG")


def _delete_endpoint(cli: CommandContext, options: argparse.Namespace) -> None:
    endpoint = _get_endpoint(cli, options.slug)
    serialized = serialize_endpoint(endpoint)
    delete_endpoint(cli.principal, endpoint)
    cli.emit(serialized)
    cli.print_message(f"{endpoint.name} is removed.")


def _test_endpoint(cli: CommandContext, options: argparse.Namespace) -> None:
    endpoint = _get_endpoint(cli, options.slug)
    with cli.show_spinner(f"Asking {endpoint.name}"):
        result = try_endpoint(cli.principal, endpoint)
    cli.emit(result.as_dict())
    cli.print_message(f"{endpoint.name} answered in {result.duration_ms} ms: {result.answer!r}")


def serialize_endpoint(endpoint: ModelEndpoint) -> dict[str, Any]:
    """Return the JSON representation of an endpoint, with a mask for the API key."""
    return {
        "id": str(endpoint.pk),
        "slug": endpoint.slug,
        **{name: getattr(endpoint, name) for name in _OPTION_FIELDS},
        "api_key": MASK if endpoint.api_key else "",
        "fallback": endpoint.fallback.slug if endpoint.fallback else None,
    }


def _show_endpoint(cli: CommandContext, endpoint: ModelEndpoint, outcome: str) -> None:
    cli.emit(serialize_endpoint(endpoint))
    cli.print_message(f"{endpoint.name} {outcome} as `{endpoint.slug}`.")


def _build_spec(
    cli: CommandContext, options: argparse.Namespace, stored_values: dict[str, Any]
) -> ModelEndpointSpec:
    option_values = {name: getattr(options, name, None) for name in _OPTION_FIELDS}
    spec_values = stored_values | {
        name: value for name, value in option_values.items() if value is not None
    }
    if options.key is not None:
        spec_values["api_key"] = expand_variables(options.key, "--key")
    if options.fallback is not None:
        spec_values["fallback"] = _get_endpoint(cli, options.fallback) if options.fallback else None
    return ModelEndpointSpec(**spec_values)


def _get_endpoint(cli: CommandContext, slug: str) -> ModelEndpoint:
    endpoint: ModelEndpoint = ModelEndpoint.objects.get_or_404(
        cli.principal.organization_id, slug=slug
    )
    return endpoint


VERBS = (
    CommandVerb("list", "List the model endpoints.", _list_endpoints, examples=("models list",)),
    CommandVerb(
        "add",
        "Add a model endpoint.",
        _create_endpoint,
        _add_create_arguments,
        (
            "models add Claude --kind anthropic --model claude-opus-5 --key '${ANTHROPIC_KEY}'",
            "models add Local --url http://127.0.0.1:11434/v1 --model qwen3 --allow-private",
        ),
    ),
    CommandVerb(
        "set",
        "Change a model endpoint; what isn't said stays.",
        _update_endpoint,
        _add_update_arguments,
        ("models set claude --fallback local", "models set claude --thinking high"),
    ),
    CommandVerb(
        "test",
        "Ask a model endpoint something small; it is paid for, and in the audit.",
        _test_endpoint,
        _add_slug_argument,
        ("models test local", "models test claude --json"),
    ),
    CommandVerb(
        "remove",
        "Remove a model endpoint that nothing uses.",
        _delete_endpoint,
        _add_slug_argument,
        ("models remove local",),
    ),
)
