"""`bonobot mcp presets`, and save-, remove-, enable- and disable-preset (A12, D9)."""

import argparse
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any
from uuid import UUID

from bonobot.cli.group import Cli, Failed, Verb, table
from bonobot.cli.servers import find
from bonobot.lib.problems import NotFound
from bonobot.lib.runtime import runtime
from bonobot.tenancy.principals import Principal
from mcp_servers.models import Preset
from mcp_servers.presets.availability import disable, enable, enabled_ids
from mcp_servers.presets.catalogue import CatalogueEntry, load
from mcp_servers.presets.loading import load_presets
from mcp_servers.presets.own import remove_preset
from mcp_servers.presets.resolving import keep, resolve
from mcp_servers.presets.saving import save_as_preset


def _presets_arguments(parser: argparse.ArgumentParser) -> None:
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


def _presets(cli: Cli, options: argparse.Namespace) -> None:
    if options.load:
        _load(cli)
    elif options.check:
        _check(cli, options.slugs)
    else:
        _list(cli, options.slugs)


def _list(cli: Cli, slugs: list[str]) -> None:
    offered = Preset.objects.offered_to(cli.principal.organization_id)
    if slugs:
        offered = offered.filter(slug__in=slugs)
        _all_there(slugs, {preset.slug for preset in offered})
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
        table(
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


def _load(cli: Cli) -> None:
    loaded = load_presets()
    cli.emit(asdict(loaded))
    counts = ((len(slugs), what) for what, slugs in asdict(loaded).items())
    cli.say(", ".join(f"{count} {what}" for count, what in counts))


def _check(cli: Cli, slugs: list[str]) -> None:
    entries = _entries(slugs)
    with cli.waiting(f"Asking about {len(entries)} presets …"):
        found = runtime().call(resolve, entries)
    keep(found)
    rows = [(each.slug, each.state, each.package, each.detail) for each in found]
    cli.emit(
        [asdict(each) for each in found],
        table("PRESET", "STATE", "PACKAGE", "DETAIL", rows=rows, empty="No presets."),
    )
    states = [each.state for each in found]
    gone, unknown = states.count("gone"), states.count("unknown")
    cli.say(f"{gone} no longer resolve, {unknown} could not be asked about")
    if gone or unknown:
        raise Failed


def _entries(slugs: list[str]) -> list[CatalogueEntry]:
    _all_there(slugs, {entry.slug for entry in load()})
    return [entry for entry in load() if not slugs or entry.slug in slugs]


def _all_there(slugs: list[str], known: set[str]) -> None:
    if missing := [slug for slug in slugs if slug not in known]:
        raise _unknown(missing[0])


def _unknown(slug: str) -> NotFound:
    return NotFound(
        f"There is no preset {slug!r}.",
        field="PRESET",
        remedy="`bonobot mcp presets` shows them.",
    )


def _save_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument("name", metavar="NAME", help="what the preset is called")


def _save(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    preset = save_as_preset(cli.principal, server, options.name)
    cli.emit(_shown(cli, preset))
    asked = ", ".join(f"{p['name']}=…" for p in preset.parameters)
    cli.say(f"{preset.name} is saved; its secrets are asked for at each use: {asked or 'none'}")
    cli.say(f"Use it: bonobot mcp add NAME --preset {preset.slug}")


def _one_preset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET", help="its slug")


def _remove(cli: Cli, options: argparse.Namespace) -> None:
    preset = _find(cli, options.preset)
    shown = _shown(cli, preset)
    remove_preset(cli.principal, preset)
    cli.emit(shown)
    cli.say(f"{shown['name']} is gone; servers that were made from it stay.")


def _switch(
    write: Callable[[Principal, Preset], None], said: str
) -> Callable[[Cli, argparse.Namespace], None]:
    def run(cli: Cli, options: argparse.Namespace) -> None:
        preset = _find(cli, options.preset)
        write(cli.principal, preset)
        cli.emit(_shown(cli, preset))
        cli.say(said.format(name=preset.name))

    return run


def _find(cli: Cli, slug: str) -> Preset:
    preset: Preset | None = Preset.objects.named(cli.principal.organization_id, slug)
    if preset is None:
        raise _unknown(slug)
    return preset


def _shown(cli: Cli, preset: Preset) -> dict[str, Any]:
    return _as_json(preset, enabled_ids(cli.principal.organization_id))


VERBS = (
    Verb(
        "presets",
        "List the catalogue of ready entries, load it, or check that its packages exist.",
        _presets,
        _presets_arguments,
        ("mcp presets", "mcp presets --load", "mcp presets --check time filesystem --json"),
    ),
    Verb(
        "save-preset",
        "Save a server as a preset of the organization; its secrets become parameters.",
        _save,
        _save_arguments,
        ("mcp save-preset docs 'Our documentation'",),
    ),
    Verb(
        "remove-preset",
        "Remove a preset of the organization; servers made from it stay.",
        _remove,
        _one_preset,
        ("mcp remove-preset our-documentation",),
    ),
    Verb(
        "enable-preset",
        "Let an organization add servers from a stdio preset of the catalogue.",
        _switch(enable, "{name} is enabled for the organization."),
        _one_preset,
        ("mcp enable-preset filesystem", "mcp enable-preset filesystem --org acme"),
    ),
    Verb(
        "disable-preset",
        "Refuse an organization new servers from a stdio preset; its servers stay.",
        _switch(disable, "{name} is disabled for the organization; its servers stay."),
        _one_preset,
        ("mcp disable-preset filesystem", "mcp disable-preset filesystem --org acme"),
    ),
)
