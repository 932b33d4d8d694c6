"""The URLs of static files."""

from typing import Any

from django.contrib.staticfiles import storage


class StaticFilesStorage(storage.StaticFilesStorage):
    """Django's storage, which builds the URL of each file once: a page has thirty of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._urls: dict[str | None, str] = {}
        super().__init__(*args, **kwargs)

    def url(self, name: str | None) -> str:
        """Return the URL of a file; the names are those of templates and code."""
        url = self._urls.get(name)
        if url is None:
            url = self._urls[name] = super().url(name)
        return url
