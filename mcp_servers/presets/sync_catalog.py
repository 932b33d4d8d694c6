"""Update the presets of the platform to the shipped catalog."""

from dataclasses import dataclass
from typing import Any

from django.db import DEFAULT_DB_ALIAS, transaction

from mcp_servers.models import Preset
from mcp_servers.presets.catalog import compute_catalog_digest, load_catalog


@dataclass(frozen=True)
class CatalogChanges:
    """What loading changed, by slug; empty if the rows were up to date."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def load_presets() -> CatalogChanges:
    """Update the platform's presets to the catalog; existing servers don't change.

    Idempotent: a second run writes nothing. Organizations' own presets are never changed.
    """
    columns_by_slug = {
        entry.slug: entry.to_columns() | {"catalog": compute_catalog_digest()}
        for entry in load_catalog()
    }
    with transaction.atomic():
        rows = {row.slug: row for row in Preset.objects.from_platform()}
        changed_slugs = [
            slug
            for slug, row in rows.items()
            if slug in columns_by_slug and _apply_columns(row, columns_by_slug[slug])
        ]
        added_slugs = [slug for slug in columns_by_slug if slug not in rows]
        removed_slugs = [slug for slug in rows if slug not in columns_by_slug]
        if changed_slugs:
            columns = next(iter(columns_by_slug.values()))
            Preset.objects.bulk_update(
                [rows[slug] for slug in changed_slugs], [*columns, "resolution"]
            )
        if added_slugs:
            # Another process may load the catalog at the same time.
            new_rows = [
                Preset(organization=None, slug=slug, **columns_by_slug[slug])
                for slug in added_slugs
            ]
            Preset.objects.bulk_create(new_rows, ignore_conflicts=True)
        if removed_slugs:
            Preset.objects.from_platform().filter(slug__in=removed_slugs).delete()
    return CatalogChanges(tuple(added_slugs), tuple(changed_slugs), tuple(removed_slugs))


def load_presets_if_outdated() -> CatalogChanges:
    """Load the catalog unless the rows are up to date, which takes one query."""
    digests = Preset.objects.from_platform().order_by().values_list("catalog", flat=True).distinct()
    return CatalogChanges() if list(digests) == [compute_catalog_digest()] else load_presets()


def load_after_migrate(*, using: str = DEFAULT_DB_ALIAS, apps: Any = None, **_: Any) -> None:
    """Load the catalog after migrations; a receiver of `post_migrate`."""
    if using == DEFAULT_DB_ALIAS and (apps is None or _has_current_columns(apps)):
        load_presets_if_outdated()


def _has_current_columns(apps: Any) -> bool:
    """Tell whether the table has all current columns; not when migrating backwards."""
    try:
        historical_model = apps.get_model(Preset._meta.app_label, Preset._meta.model_name)
    except LookupError:
        return False
    columns = {field.name for field in historical_model._meta.concrete_fields}
    return columns >= {field.name for field in Preset._meta.concrete_fields}


def _apply_columns(row: Preset, columns: dict[str, object]) -> bool:
    """Set the columns of a row; return whether anything changed."""
    before = {name: getattr(row, name) for name in columns}
    if row.proof != columns["proof"]:
        row.resolution = {}  # it was for another package or version
    for name, value in columns.items():
        setattr(row, name, value)
    return before != columns
