"""The command group `models`: list, add, set, test and remove model endpoints."""

import argparse
from dataclasses import fields, replace
from functools import partial
from typing import Any

from agents.model_endpoints.services import BOUNDS, ModelEndpointSpec
from agents.models import ModelEndpoint
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb, expand_variables
from bonobot.core.cli.text_table import build_table
from bonobot.core.text.amounts import parse_dollars
from bonobot.core.text.masking import MASK

# Fields of the specification that have an option of the same name.
_OPTION_FIELDS = tuple(
    spec_field.name
    for spec_field in fields(ModelEndpointSpec)
    if spec_field.name not in ("api_key", "fallback")
)

_parse_price = partial(parse_dollars, largest=BOUNDS["input_price"][1])

_ENDPOINT_ARGUMENTS = (
    Argument("--model NAME", "Model name, as used by the provider"),
    Argument("--url URL", "Base URL (default: the provider's)", dest="base_url"),
    Argument(
        "--key KEY",
        "API key. Use ${VAR} to read it from the environment. "
        "Encrypted when saved and never shown again.",
    ),
    Argument("--access-key-id ID", "AWS access key ID, for Bedrock. Pass its secret with --key."),
    Argument("--region R", "Region, for Bedrock and Vertex AI"),
    Argument("--api-version V", "API version, for Azure (default: the v1 API)"),
    Argument("--allow-private", "Allow a private or loopback address", default=None),
    Argument("--timeout S", "Timeout in seconds", dest="timeout_s", type=int),
    Argument("--retries N", "Maximum number of retries", type=int),
    Argument("--fallback SLUG", 'Endpoint to use if this one fails. "": none'),
    Argument("--fallback-on", "When to use the fallback", choices=ModelEndpoint.FallbackOn.values),
    Argument(
        "--thinking EFFORT",
        "Thinking effort: off, low, medium, or high. '': model default",
        choices=ModelEndpoint.Thinking.values,
    ),
    Argument("--[no-]thinking-summaries", "Whether to ask the provider for readable thinking"),
    Argument(
        "--max-output-tokens N", "Maximum output tokens per turn", dest="max_tokens", type=int
    ),
    Argument("--context-window N", "Context window of the model, in tokens", type=int),
    Argument("--[no-]image-input", "Whether the model accepts images"),
    Argument("--[no-]pdf-input", "Whether the model accepts PDF files"),
    Argument("--[no-]native-tools", "Whether the model supports tool calls"),
    Argument(
        "--[no-]prompt-caching",
        "Whether to mark what the provider may cache, for Anthropic and Bedrock (default: on)",
    ),
    Argument("--[no-]selectable", "Whether members can choose it for their sessions"),
    Argument("--input-price DOLLARS", "Price of a million input tokens", type=_parse_price),
    Argument("--output-price DOLLARS", "Price of a million output tokens", type=_parse_price),
    Argument(
        "--cache-read-price DOLLARS",
        "Price of a million tokens read from the cache (default: the input price)",
        type=_parse_price,
    ),
    Argument(
        "--cache-write-price DOLLARS",
        "Price of a million tokens written to the cache (default: 125%% of the input price)",
        type=_parse_price,
    ),
)


_CREATE_ARGUMENTS = (
    Argument("NAME", "Name of the model endpoint"),
    Argument(
        "--kind",
        "Kind of API (default: openai)",
        default="openai",
        choices=ModelEndpoint.Kind.values,
    ),
    *_ENDPOINT_ARGUMENTS,
)


_UPDATE_ARGUMENTS = (
    Argument("SLUG", "Slug of the model endpoint"),
    Argument("--name NAME", "New name"),
    Argument("--kind", "Kind of API", choices=ModelEndpoint.Kind.values),
    *_ENDPOINT_ARGUMENTS,
)


def _create_endpoint(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.model_endpoints.services import save_endpoint

    spec = ModelEndpointSpec(name=options.name, api_key="")
    endpoint = save_endpoint(cli.principal, _apply_options(cli, options, spec))
    _show_endpoint(cli, endpoint, "was created")


def _update_endpoint(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.model_endpoints.services import build_spec, save_endpoint

    endpoint = cli.get_row(ModelEndpoint, slug=options.slug)
    spec = _apply_options(cli, options, build_spec(endpoint))
    _show_endpoint(cli, save_endpoint(cli.principal, spec, endpoint), "was updated")


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


_SLUG_ARGUMENT = (Argument("SLUG", "Slug of the model endpoint"),)


def _delete_endpoint(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.model_endpoints.services import delete_endpoint

    endpoint = cli.get_row(ModelEndpoint, slug=options.slug)
    serialized = serialize_endpoint(endpoint)
    delete_endpoint(cli.principal, endpoint)
    cli.emit(serialized)
    cli.print_message(f"{endpoint.name} was deleted.")


def _test_endpoint(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.model_endpoints.try_endpoint import try_endpoint

    endpoint = cli.get_row(ModelEndpoint, slug=options.slug)
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


def _apply_options(
    cli: CommandContext, options: argparse.Namespace, spec: ModelEndpointSpec
) -> ModelEndpointSpec:
    values = {name: getattr(options, name, None) for name in _OPTION_FIELDS}
    changed_values = {name: value for name, value in values.items() if value is not None}
    if options.key is not None:
        changed_values["api_key"] = expand_variables(options.key, "--key")
    if options.fallback is not None:
        fallback = cli.get_row(ModelEndpoint, slug=options.fallback) if options.fallback else None
        changed_values["fallback"] = fallback
    return replace(spec, **changed_values)


VERBS = (
    CommandVerb("list", "List model endpoints", _list_endpoints, examples=("models list",)),
    CommandVerb(
        "add",
        "Create a model endpoint",
        _create_endpoint,
        arguments=_CREATE_ARGUMENTS,
        examples=(
            "models add Claude --kind anthropic --model claude-opus-5 --key '${ANTHROPIC_KEY}'",
            "models add Local --url http://127.0.0.1:11434/v1 --model qwen3 --allow-private",
        ),
    ),
    CommandVerb(
        "set",
        "Update a model endpoint. Options that are not specified stay unchanged.",
        _update_endpoint,
        arguments=_UPDATE_ARGUMENTS,
        examples=("models set claude --fallback local", "models set claude --thinking high"),
    ),
    CommandVerb(
        "test",
        "Send a short test request. It is billed and recorded in the audit log.",
        _test_endpoint,
        arguments=_SLUG_ARGUMENT,
        examples=("models test local", "models test claude --json"),
    ),
    CommandVerb(
        "remove",
        "Delete an unused model endpoint",
        _delete_endpoint,
        arguments=_SLUG_ARGUMENT,
        examples=("models remove local",),
        confirmation="Delete the model endpoint {slug}?",
    ),
)
