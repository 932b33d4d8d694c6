"""The command group `models`: list, add, set, test and remove model endpoints."""

import argparse
from dataclasses import fields
from typing import Any

from agents.model_endpoints.services import ModelEndpointSpec
from agents.models import ModelEndpoint
from bonobot.core.cli.command_group import (
    CommandContext,
    CommandVerb,
    build_table,
    expand_variables,
)
from bonobot.core.text.dollars import parse_dollars
from bonobot.core.text.masking import MASK

# Fields of the specification that have an option of the same name.
_OPTION_FIELDS = tuple(
    spec_field.name
    for spec_field in fields(ModelEndpointSpec)
    if spec_field.name not in ("api_key", "fallback")
)


def _add_endpoint_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="Model name, as used by the provider")
    parser.add_argument(
        "--url", dest="base_url", metavar="URL", help="Base URL (default: the provider's)"
    )
    parser.add_argument(
        "--key",
        metavar="KEY",
        help="API key. Use ${VAR} to read it from the environment. "
        "Encrypted when saved and never shown again.",
    )
    parser.add_argument(
        "--access-key-id",
        metavar="ID",
        help="AWS access key ID, for Bedrock. Pass its secret with --key.",
    )
    parser.add_argument("--region", metavar="R", help="Region, for Bedrock and Vertex AI")
    parser.add_argument(
        "--api-version", metavar="V", help="API version, for Azure (default: the v1 API)"
    )
    parser.add_argument(
        "--allow-private",
        action="store_true",
        default=None,
        help="Allow a private or loopback address",
    )
    _add_failure_arguments(parser)
    _add_model_arguments(parser)


def _add_failure_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", dest="timeout_s", type=int, metavar="S", help="Timeout in seconds"
    )
    parser.add_argument("--retries", type=int, metavar="N", help="Maximum number of retries")
    parser.add_argument(
        "--fallback", metavar="SLUG", help='Endpoint to use if this one fails. "": none'
    )
    parser.add_argument(
        "--fallback-on",
        dest="fallback_on",
        choices=ModelEndpoint.FallbackOn.values,
        help="When to use the fallback",
    )


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--thinking",
        choices=ModelEndpoint.Thinking.values,
        metavar="EFFORT",
        help="Thinking effort: off, low, medium, or high. '': model default",
    )
    parser.add_argument(
        "--thinking-summaries",
        action=argparse.BooleanOptionalAction,
        help="Whether to ask the provider for readable thinking",
    )
    parser.add_argument(
        "--max-output-tokens",
        dest="max_tokens",
        type=int,
        metavar="N",
        help="Maximum output tokens per turn",
    )
    parser.add_argument(
        "--context-window", type=int, metavar="N", help="Context window of the model, in tokens"
    )
    parser.add_argument(
        "--image-input",
        dest="image_input",
        action=argparse.BooleanOptionalAction,
        help="Whether the model accepts images",
    )
    parser.add_argument(
        "--pdf-input",
        action=argparse.BooleanOptionalAction,
        help="Whether the model accepts PDF files",
    )
    parser.add_argument(
        "--native-tools",
        action=argparse.BooleanOptionalAction,
        help="Whether the model supports tool calls",
    )
    _add_cost_arguments(parser)


def _add_cost_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prompt-caching",
        action=argparse.BooleanOptionalAction,
        help="Whether to mark what the provider may cache, for Anthropic and Bedrock (default: on)",
    )
    parser.add_argument(
        "--selectable",
        action=argparse.BooleanOptionalAction,
        help="Whether members can choose it for their sessions",
    )
    parser.add_argument(
        "--input-price",
        type=parse_dollars,
        metavar="DOLLARS",
        help="Price of a million input tokens",
    )
    parser.add_argument(
        "--output-price",
        type=parse_dollars,
        metavar="DOLLARS",
        help="Price of a million output tokens",
    )
    parser.add_argument(
        "--cache-read-price",
        type=parse_dollars,
        metavar="DOLLARS",
        help="Price of a million tokens read from the cache (default: the input price)",
    )
    parser.add_argument(
        "--cache-write-price",
        type=parse_dollars,
        metavar="DOLLARS",
        help="Price of a million tokens written to the cache (default: 125%% of the input price)",
    )


def _add_create_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name of the model endpoint")
    parser.add_argument(
        "--kind",
        default="openai",
        choices=ModelEndpoint.Kind.values,
        help="Kind of API (default: openai)",
    )
    _add_endpoint_arguments(parser)


def _add_update_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG", help="Slug of the model endpoint")
    parser.add_argument("--name", help="New name")
    parser.add_argument("--kind", choices=ModelEndpoint.Kind.values, help="Kind of API")
    _add_endpoint_arguments(parser)


def _create_endpoint(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.model_endpoints.services import save_endpoint

    endpoint = save_endpoint(cli.principal, _build_spec(cli, options, {"api_key": ""}))
    _show_endpoint(cli, endpoint, "was created")


def _update_endpoint(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.model_endpoints.services import save_endpoint

    endpoint = _get_endpoint(cli, options.slug)
    stored_values: dict[str, Any] = {
        name: getattr(endpoint, name) for name in (*_OPTION_FIELDS, "fallback")
    }
    _show_endpoint(
        cli,
        save_endpoint(cli.principal, _build_spec(cli, options, stored_values), endpoint),
        "was updated",
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
    empty = "No model endpoints yet. Create one: bonobot models add NAME --kind KIND --model MODEL"
    cli.emit(
        serialized,
        build_table("SLUG", "KIND", "MODEL", "URL", "FALLBACK", rows=table_rows, empty=empty),
    )


def _add_slug_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG", help="Slug of the model endpoint")


def _delete_endpoint(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.model_endpoints.services import delete_endpoint

    endpoint = _get_endpoint(cli, options.slug)
    serialized = serialize_endpoint(endpoint)
    delete_endpoint(cli.principal, endpoint)
    cli.emit(serialized)
    cli.print_message(f"{endpoint.name} was deleted.")


def _test_endpoint(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.model_endpoints.try_endpoint import try_endpoint

    endpoint = _get_endpoint(cli, options.slug)
    with cli.show_spinner(f"Testing {endpoint.name}…"):
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
    cli.print_message(f"{endpoint.name} (`{endpoint.slug}`) {outcome}.")


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
    CommandVerb("list", "List model endpoints", _list_endpoints, examples=("models list",)),
    CommandVerb(
        "add",
        "Create a model endpoint",
        _create_endpoint,
        _add_create_arguments,
        (
            "models add Claude --kind anthropic --model claude-opus-5 --key '${ANTHROPIC_KEY}'",
            "models add Local --url http://127.0.0.1:11434/v1 --model qwen3 --allow-private",
        ),
    ),
    CommandVerb(
        "set",
        "Update a model endpoint. Options that are not specified stay unchanged.",
        _update_endpoint,
        _add_update_arguments,
        ("models set claude --fallback local", "models set claude --thinking high"),
    ),
    CommandVerb(
        "test",
        "Send a short test request. It is billed and recorded in the audit log.",
        _test_endpoint,
        _add_slug_argument,
        ("models test local", "models test claude --json"),
    ),
    CommandVerb(
        "remove",
        "Delete an unused model endpoint",
        _delete_endpoint,
        _add_slug_argument,
        ("models remove local",),
        "Delete the model endpoint {slug}?",
    ),
)
