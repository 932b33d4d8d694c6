"""The commands `mcp presets`, `save-preset`, `remove-preset`, `enable-preset`, `disable-preset`."""

import argparse
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any
from uuid import UUID

from bonobot.accounts.principals import Principal
from bonobot.core.cli.command_group import CommandContext, CommandFailed, CommandVerb, build_table
from bonobot.core.problems import NotFound
from bonobot.core.runtime import get_runtime
from mcp_servers.cli.servers import find
from mcp_servers.models import Preset
from mcp_servers.presets.availability import disable, enable, enabled_ids
from mcp_servers.presets.catalog import CatalogEntry, load
from mcp_servers.presets.check_packages import keep, resolve
from mcp_servers.presets.services import load_presets, remove_preset, save_as_preset


def _add_presets_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slugs", metavar="PRESET", nargs="*", help="only these (default: all)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check",
        action="store_true",
        help="ask npm and PyPI which packages no longer resolve, and mark those in the gallery; "
        "exit status 1 if one doesn't",
    )
    what.add_argument(
        "--load", action="store_true", help="bring the shipped catalogue into the database"
    )


def _handle_presets(cli: CommandContext, options: argparse.Namespace) -> None:
    if options.load:
        _load(cli)
    elif options.check:
        _check(cli, options.slugs)
    else:
        _list(cli, options.slugs)


def _list(cli: CommandContext, slugs: list[str]) -> None:
    offered = Preset.objects.offered_to(cli.principal.organization_id)
    if slugs:
        offered = offered.filter(slug__in=slugs)
        _check_slugs(slugs, {preset.slug for preset in offered})
    enabled = enabled_ids(cli.principal.organization_id)
    found = [_as_json(preset, enabled) for preset in offered]
    rows = [
        (
            *(p["slug"], p["category"], "yes" if p["enabled"] else "no"),
            *(p["description"], ", ".join(p["replaces"])),
        )
        for p in found
    ]
    cli.emit(
        found,
        build_table(
            *("PRESET", "CATEGORY", "ENABLED", "DESCRIPTION", "STANDS IN FOR"),
            rows=rows,
            empty="No presets. Load the catalogue: bonobot mcp presets --load",
        ),
    )


def _as_json(preset: Preset, enabled: Collection[UUID]) -> dict[str, Any]:
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


def _load(cli: CommandContext) -> None:
    loaded = load_presets()
    cli.emit(asdict(loaded))
    counts = ((len(slugs), what) for what, slugs in asdict(loaded).items())
    cli.say(", ".join(f"{count} {what}" for count, what in counts))


def _check(cli: CommandContext, slugs: list[str]) -> None:
    entries = _list_entries(slugs)
    with cli.waiting(f"Asking about {len(entries)} presets …"):
        found = get_runtime().call(resolve, entries)
    keep(found)
    rows = [(each.slug, each.state, each.package, each.detail) for each in found]
    cli.emit(
        [asdict(each) for each in found],
        build_table("PRESET", "STATE", "PACKAGE", "DETAIL", rows=rows, empty="No presets."),
    )
    states = [each.state for each in found]
    gone, unknown = states.count("gone"), states.count("unknown")
    cli.say(f"{gone} no longer resolve, {unknown} could not be asked about")
    if gone or unknown:
        raise CommandFailed


def _list_entries(slugs: list[str]) -> list[CatalogEntry]:
    _check_slugs(slugs, {entry.slug for entry in load()})
    return [entry for entry in load() if not slugs or entry.slug in slugs]


def _check_slugs(slugs: list[str], known: set[str]) -> None:
    if missing := [slug for slug in slugs if slug not in known]:
        raise _build_unknown_preset_error(missing[0])


def _build_unknown_preset_error(slug: str) -> NotFound:
    return NotFound(
        f"There is no preset {slug!r}.",
        field="PRESET",
        remedy="`bonobot mcp presets` shows them.",
    )


def _save_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument("name", metavar="NAME", help="what the preset is called")


def _save(cli: CommandContext, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    preset = save_as_preset(cli.principal, server, options.name)
    cli.emit(_describe_preset(cli, preset))
    asked = ", ".join(f"{p['name']}=…" for p in preset.parameters)
    cli.say(f"{preset.name} is saved; its secrets are asked for at each use: {asked or 'none'}")
    cli.say(f"Use it: bonobot mcp add NAME --preset {preset.slug}")


def _one_preset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET", help="its slug")


def _remove(cli: CommandContext, options: argparse.Namespace) -> None:
    preset = _find(cli, options.preset)
    shown = _describe_preset(cli, preset)
    remove_preset(cli.principal, preset)
    cli.emit(shown)
    cli.say(f"{shown['name']} is gone; servers that were made from it stay.")


def _switch(
    write: Callable[[Principal, Preset], None], said: str
) -> Callable[[CommandContext, argparse.Namespace], None]:
    def run(cli: CommandContext, options: argparse.Namespace) -> None:
        preset = _find(cli, options.preset)
        write(cli.principal, preset)
        cli.emit(_describe_preset(cli, preset))
        cli.say(said.format(name=preset.name))

    return run


def _find(cli: CommandContext, slug: str) -> Preset:
    preset: Preset | None = Preset.objects.named(cli.principal.organization_id, slug)
    if preset is None:
        raise _build_unknown_preset_error(slug)
    return preset


def _describe_preset(cli: CommandContext, preset: Preset) -> dict[str, Any]:
    return _as_json(preset, enabled_ids(cli.principal.organization_id))


VERBS = (
    CommandVerb(
        "presets",
        "List the catalogue of ready entries, load it, or check that its packages exist.",
        _handle_presets,
        _add_presets_arguments,
        ("mcp presets", "mcp presets --load", "mcp presets --check time filesystem --json"),
    ),
    CommandVerb(
        "save-preset",
        "Save a server as a preset of the organization; its secrets become parameters.",
        _save,
        _save_arguments,
        ("mcp save-preset docs 'Our documentation'",),
    ),
    CommandVerb(
        "remove-preset",
        "Remove a preset of the organization; servers made from it stay.",
        _remove,
        _one_preset,
        ("mcp remove-preset our-documentation",),
    ),
    CommandVerb(
        "enable-preset",
        "Let an organization add servers from a stdio preset of the catalogue.",
        _switch(enable, "{name} is enabled for the organization."),
        _one_preset,
        ("mcp enable-preset filesystem", "mcp enable-preset filesystem --org acme"),
    ),
    CommandVerb(
        "disable-preset",
        "Refuse an organization new servers from a stdio preset; its servers stay.",
        _switch(disable, "{name} is disabled for the organization; its servers stay."),
        _one_preset,
        ("mcp disable-preset filesystem", "mcp disable-preset filesystem --org acme"),
    ),
)
