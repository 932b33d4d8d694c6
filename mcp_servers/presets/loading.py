"""Bring the shipped catalogue into rows: the platform's presets are what the file says."""

from dataclasses import dataclass
from typing import Any

from django.db import DEFAULT_DB_ALIAS, transaction

from mcp_servers.models import Preset
from mcp_servers.presets.catalogue import edition, load


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
    wanted = {entry.slug: entry.columns() | {"catalogue": edition()} for entry in load()}
    with transaction.atomic():
        rows = {row.slug: row for row in Preset.objects.platform()}
        changed = [slug for slug, row in rows.items() if slug in wanted and _set(row, wanted[slug])]
        added = [slug for slug in wanted if slug not in rows]
        removed = [slug for slug in rows if slug not in wanted]
        if changed:
            columns = next(iter(wanted.values()))
            Preset.objects.bulk_update([rows[slug] for slug in changed], [*columns, "resolution"])
        if added:
            # Another process may be starting too: whoever comes second finds the rows.
            new = [Preset(organization=None, slug=slug, **wanted[slug]) for slug in added]
            Preset.objects.bulk_create(new, ignore_conflicts=True)
        if removed:
            Preset.objects.platform().filter(slug__in=removed).delete()
    return Loaded(tuple(added), tuple(changed), tuple(removed))


def load_new_presets() -> Loaded:
    """Load the catalogue, unless the rows are of this edition already: then it is one query."""
    found = Preset.objects.platform().order_by().values_list("catalogue", flat=True).distinct()
    return Loaded() if list(found) == [edition()] else load_presets()


def after_migrating(*, using: str = DEFAULT_DB_ALIAS, apps: Any = None, **_: Any) -> None:
    """Load the catalogue wherever tables were made or changed: a receiver of `post_migrate`."""
    if using == DEFAULT_DB_ALIAS and (apps is None or _has_columns(apps)):
        load_new_presets()


def _has_columns(apps: Any) -> bool:
    """Tell whether the schema is ours: on the way back to an older one there's nothing to load."""
    try:
        then = apps.get_model(Preset._meta.app_label, Preset._meta.model_name)
    except LookupError:
        return False
    columns = {field.name for field in then._meta.concrete_fields}
    return columns >= {field.name for field in Preset._meta.concrete_fields}


def _set(row: Preset, columns: dict[str, object]) -> bool:
    """Put the columns into a row; tell whether anything differs."""
    before = {name: getattr(row, name) for name in columns}
    if row.proof != columns["proof"]:
        row.resolution = {}  # it was said of another package or version
    for name, value in columns.items():
        setattr(row, name, value)
    return before != columns
