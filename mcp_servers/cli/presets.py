"""The commands `mcp presets`, `save-preset`, `remove-preset`, `enable-preset`, `disable-preset`."""

import argparse
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import UUID

from bonobot.accounts.principals import Principal
from bonobot.core.cli.command_group import (
    Alternatives,
    Argument,
    CommandContext,
    CommandFailed,
    CommandVerb,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.i18n.messages import format_count
from bonobot.core.problems import NotFound
from mcp_servers.cli.servers import get_server
from mcp_servers.models import Preset
from mcp_servers.presets.enabled_presets import disable_preset, enable_preset

if TYPE_CHECKING:
    from mcp_servers.presets.catalog import CatalogEntry


_PRESETS_ARGUMENTS = (
    Argument("PRESET", "Slugs of presets (default: all)", dest="slugs", nargs="*"),
    Alternatives(
        Argument(
            "--check",
            "Check whether the packages exist on npm and PyPI, and mark missing ones in the "
            "catalog. The exit status is 1 if a check fails.",
        ),
        Argument("--load", "Load the built-in catalog into the database"),
    ),
)


def _handle_presets(cli: CommandContext, options: argparse.Namespace) -> None:
    if options.load:
        _load_catalog(cli)
    elif options.check:
        _check_packages(cli, options.slugs)
    else:
        _list_presets(cli, options.slugs)


def _list_presets(cli: CommandContext, slugs: list[str]) -> None:
    from mcp_servers.presets.enabled_presets import list_enabled_ids

    presets = Preset.objects.available_to(cli.principal.organization_id)
    if slugs:
        presets = presets.filter(slug__in=slugs)
        _check_slugs(slugs, {preset.slug for preset in presets})
    enabled = list_enabled_ids(cli.principal.organization_id)
    serialized = [_serialize_preset(preset, enabled) for preset in presets]
    rows = [
        (
            *(p["slug"], p["category"], "yes" if p["enabled"] else "no"),
            *(p["description"], ", ".join(p["replaces"])),
        )
        for p in serialized
    ]
    cli.emit(
        serialized,
        build_table(
            *("PRESET", "CATEGORY", "ENABLED", "DESCRIPTION", "REPLACES"),
            rows=rows,
            empty="No presets. Load the catalog: bonobot mcp presets --load",
        ),
    )


def _serialize_preset(preset: Preset, enabled: Collection[UUID]) -> dict[str, Any]:
    return {
        "slug": preset.slug,
        "name": preset.name,
        "category": preset.category,
        "description": preset.description,
        "documentation_url": preset.documentation_url,
        "transport_type": preset.transport_type,
        "parameters": preset.parameters,
        "proof": preset.proof,
        "own": preset.organization_id is not None,
        "enabled": preset.pk in enabled,
        "replaces": preset.replaces,
        "resolution": preset.resolution,
    }


def _load_catalog(cli: CommandContext) -> None:
    from mcp_servers.presets.sync_catalog import load_presets

    catalog_changes = load_presets()
    cli.emit(asdict(catalog_changes))
    counts = ((len(slugs), change) for change, slugs in asdict(catalog_changes).items())
    cli.print_message(", ".join(f"{count} {change}" for count, change in counts))


def _check_packages(cli: CommandContext, slugs: list[str]) -> None:
    from bonobot.core.runtime import get_runtime
    from mcp_servers.presets.check_packages import resolve, save_resolutions

    entries = _list_entries(slugs)
    with cli.show_spinner(f"Checking {len(entries)} presets…"):
        results = get_runtime().call(resolve, entries)
    save_resolutions(results)
    rows = [(result.slug, result.state, result.package, result.detail) for result in results]
    cli.emit(
        [asdict(result) for result in results],
        build_table("PRESET", "STATE", "PACKAGE", "DETAIL", rows=rows, empty="No presets."),
    )
    states = [result.state for result in results]
    gone_count, unknown = states.count("gone"), states.count("unknown")
    missing = format_count(gone_count, "package")
    cli.print_message(f"{missing} not found. {unknown} couldn't be checked.")
    if gone_count or unknown:
        raise CommandFailed


def _list_entries(slugs: list[str]) -> "list[CatalogEntry]":
    from mcp_servers.presets.catalog import load_catalog

    _check_slugs(slugs, {entry.slug for entry in load_catalog()})
    return [entry for entry in load_catalog() if not slugs or entry.slug in slugs]


def _check_slugs(slugs: list[str], known_slugs: set[str]) -> None:
    if missing := [slug for slug in slugs if slug not in known_slugs]:
        raise _build_unknown_preset_error(missing[0])


def _build_unknown_preset_error(slug: str) -> NotFound:
    return NotFound(
        f"The preset {slug!r} doesn't exist.",
        field="PRESET",
        remedy="List the presets: bonobot mcp presets",
    )


_SAVE_ARGUMENTS = (
    Argument("SERVER", "Slug, name, or ID of the server"),
    Argument("NAME", "Name of the preset"),
)


def _save_preset(cli: CommandContext, options: argparse.Namespace) -> None:
    from mcp_servers.presets.save_as_preset import save_as_preset

    server = get_server(cli, options.server)
    preset = save_as_preset(cli.principal, server, options.name)
    cli.emit(_describe_preset(cli, preset))
    secret_values = ", ".join(f"{p['name']}=…" for p in preset.parameters)
    cli.print_message(
        f"{preset.name} was saved. Secrets to enter at each use: {secret_values or 'none'}"
    )
    cli.print_message(f"Use it: bonobot mcp add NAME --preset {preset.slug}")


_PRESET_ARGUMENT = (Argument("PRESET", "Slug of the preset"),)


def _delete_preset(cli: CommandContext, options: argparse.Namespace) -> None:
    from mcp_servers.presets.services import delete_preset

    preset = _get_preset(cli, options.preset)
    serialized = _describe_preset(cli, preset)
    delete_preset(cli.principal, preset)
    cli.emit(serialized)
    cli.print_message(f"{serialized['name']} was deleted. Servers created from it are kept.")


def _build_switch_handler(
    set_availability: Callable[[Principal, Preset], None], message: str
) -> Callable[[CommandContext, argparse.Namespace], None]:
    def handle_switch(cli: CommandContext, options: argparse.Namespace) -> None:
        preset = _get_preset(cli, options.preset)
        set_availability(cli.principal, preset)
        cli.emit(_describe_preset(cli, preset))
        cli.print_message(message.format(name=preset.name))

    return handle_switch


def _get_preset(cli: CommandContext, slug: str) -> Preset:
    preset: Preset | None = Preset.objects.find_by_slug(cli.principal.organization_id, slug)
    if preset is None:
        raise _build_unknown_preset_error(slug)
    return preset


def _describe_preset(cli: CommandContext, preset: Preset) -> dict[str, Any]:
    from mcp_servers.presets.enabled_presets import list_enabled_ids

    return _serialize_preset(preset, list_enabled_ids(cli.principal.organization_id))


VERBS = (
    CommandVerb(
        "presets",
        "List the presets of the catalog, load the catalog, or check its packages",
        _handle_presets,
        arguments=_PRESETS_ARGUMENTS,
        examples=(
            "mcp presets",
            "mcp presets --load",
            "mcp presets --check time filesystem --json",
        ),
    ),
    CommandVerb(
        "save-preset",
        "Save a server as a preset of the organization. Its secrets become parameters.",
        _save_preset,
        arguments=_SAVE_ARGUMENTS,
        examples=("mcp save-preset docs 'Our documentation'",),
    ),
    CommandVerb(
        "remove-preset",
        "Delete a preset of the organization. Servers created from it are kept.",
        _delete_preset,
        arguments=_PRESET_ARGUMENT,
        examples=("mcp remove-preset our-documentation",),
        confirmation="Delete the preset {preset}?",
    ),
    CommandVerb(
        "enable-preset",
        "Allow an organization to add servers from a stdio preset",
        _build_switch_handler(enable_preset, "{name} was enabled for the organization."),
        arguments=_PRESET_ARGUMENT,
        examples=("mcp enable-preset filesystem", "mcp enable-preset filesystem --org acme"),
    ),
    CommandVerb(
        "disable-preset",
        "Prevent an organization from adding servers from a stdio preset. Servers are kept.",
        _build_switch_handler(
            disable_preset, "{name} was disabled for the organization. Its servers are kept."
        ),
        arguments=_PRESET_ARGUMENT,
        examples=("mcp disable-preset filesystem", "mcp disable-preset filesystem --org acme"),
    ),
)
