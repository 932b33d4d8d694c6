"""The page of a form, to which a person returns after signing in again."""

from urllib.parse import urlsplit

from django.http import HttpRequest
from django.utils.http import url_has_allowed_host_and_scheme


def find_form_page(request: HttpRequest, default: str) -> str:
    """Return the path of the page whose form was posted, which can be loaded again.

    The address of the POST itself often answers POST only. `default` if the browser didn't say.
    """
    referrer = request.headers.get("Referer", "")
    is_own = url_has_allowed_host_and_scheme(referrer, {request.get_host()}, request.is_secure())
    parts = urlsplit(referrer)
    # Browsers read a path that begins with two slashes as another host.
    if not is_own or not parts.path.startswith("/") or parts.path[1:2] in ("/", "\\"):
        return default
    return f"{parts.path}?{parts.query}" if parts.query else parts.path
