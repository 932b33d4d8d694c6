"""Paths of the admin's pages: those of a model have its plural name, as in REST."""

from collections.abc import Iterable, Iterator

from django.db.models import Model
from django.urls import URLPattern, URLResolver, include, path
from django.utils import translation
from django.utils.text import slugify

# Where the pages have another name than the rows.
OTHER_NAMES = {"audit-entries": "audit-log", "periodic-tasks": "schedules"}


def get_page_path(model: type[Model]) -> str:
    """Return the path of a model's pages below that of the admin, such as `mcp-servers`."""
    with translation.override(None):
        name = slugify(str(model._meta.verbose_name_plural))
    return OTHER_NAMES.get(name, name)


def get_default_path(model: type[Model]) -> str:
    """Return the path that Django gives a model's pages, such as `mcp_servers/server`."""
    return f"{model._meta.app_label}/{model._meta.model_name}"


def rename_paths(
    patterns: Iterable[URLPattern | URLResolver], models: Iterable[type[Model]]
) -> Iterator[URLPattern | URLResolver]:
    """Yield the patterns of an admin site with the paths of `get_page_path`."""
    paths = {f"{get_default_path(model)}/": f"{get_page_path(model)}/" for model in models}
    for pattern in patterns:
        new_path = paths.get(str(pattern.pattern))
        if new_path is not None and isinstance(pattern, URLResolver):
            yield path(new_path, include(pattern.url_patterns))
        else:
            yield pattern
