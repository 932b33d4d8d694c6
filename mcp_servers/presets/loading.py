"""Bring the shipped catalogue into rows: the platform's presets are what the file says."""

from dataclasses import dataclass

from django.db import transaction

from mcp_servers.models import Preset
from mcp_servers.presets.catalogue import load


@dataclass(frozen=True)
class Loaded:
    """What loading changed, by slug; all empty where the rows were as the file says."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def load_presets() -> Loaded:
    """Make the platform's rows equal to the catalogue; servers made from a row keep their own.

    Idempotent: a second run writes nothing. Organizations' own presets are never touched.
    """
    wanted = {entry.slug: entry.columns() for entry in load()}
    with transaction.atomic():
        rows = {row.slug: row for row in Preset.objects.filter(organization__isnull=True)}
        changed = [slug for slug, row in rows.items() if slug in wanted and _set(row, wanted[slug])]
        added = [slug for slug in wanted if slug not in rows]
        removed = [slug for slug in rows if slug not in wanted]
        for slug in changed:
            rows[slug].save()
        for slug in added:
            # Another process may be starting too: whoever comes second finds the row.
            Preset.objects.get_or_create(organization=None, slug=slug, defaults=wanted[slug])
        if removed:
            Preset.objects.filter(organization__isnull=True, slug__in=removed).delete()
    return Loaded(tuple(added), tuple(changed), tuple(removed))


def _set(row: Preset, columns: dict[str, object]) -> bool:
    """Put the columns into a row; tell whether anything differs."""
    before = {name: getattr(row, name) for name in columns}
    for name, value in columns.items():
        setattr(row, name, value)
    return before != columns
