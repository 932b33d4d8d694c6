"""Static files, served by the ASGI process."""

from pathlib import Path
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from servestatic.middleware import ServeStaticMiddleware
from servestatic.responders import StaticFile


class StaticFilesMiddleware(ServeStaticMiddleware):
    """Serves files also after they changed.

    servestatic reads their sizes once, at the start, and would send a changed file with the length
    of the earlier one, which browsers refuse: after an edit in a checkout, or an upgrade in place.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._versions: dict[str, tuple[int, int]] = {}  # by URL: time of change and size
        super().__init__(*args, **kwargs)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Serve a static file, after reading its size and time again if it changed."""
        file = self.files.get(request.path_info)
        if isinstance(file, StaticFile):
            self._update_file(request.path_info, file)
        response: HttpResponseBase = await super().__call__(request)
        return response

    def _update_file(self, url: str, file: StaticFile) -> None:
        path = file.alternatives[0][1]
        try:
            status = Path(path).stat()
        except FileNotFoundError:
            del self.files[url]
            return
        version = (status.st_mtime_ns, status.st_size)
        if self._versions.get(url) != version:
            self.add_file_to_dictionary(url, path)
            self._versions[url] = version
