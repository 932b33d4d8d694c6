"""Middleware that requires sign-in and sets the user's language and time zone."""

from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import resolve_url
from django.urls import reverse
from django.utils import translation
from django.views.i18n import set_language

from bonobot.accounts import profiles
from bonobot.core.http.error_pages import find_form_page
from bonobot.core.i18n import time_zones

LANGUAGE_PARAMETER = "language"
# In the query of the sign-in page, after a redirect from a page.
EXPIRED_PARAMETER = "expired"


class SignInLocaleMiddleware(LoginRequiredMiddleware):
    """Require sign-in where needed, and activate the user's language and time zone.

    One middleware does both, so that requests that need neither don't load the user.
    """

    def process_view(
        self, request: HttpRequest, view_func: Any, view_args: Any, view_kwargs: Any
    ) -> Any:
        """Return a redirect to the sign-in page, or None to continue."""
        time_zones.set_reader_time_zone(getattr(request.user, "time_zone", ""))
        user_language = getattr(request.user, "language", "")
        if user_language:
            translation.activate(user_language)
            request.LANGUAGE_CODE = translation.get_language()
        return super().process_view(request, view_func, view_args, view_kwargs)

    def handle_no_permission(self, request: HttpRequest, view_func: Any) -> HttpResponseRedirect:
        """Return a redirect to sign-in, which says so if the browser's session has ended."""
        response = self._redirect_to_sign_in(request, view_func)
        if has_ended_session(request):
            response["Location"] += f"&{urlencode({EXPIRED_PARAMETER: 1})}"
        return response

    def _redirect_to_sign_in(self, request: HttpRequest, view_func: Any) -> HttpResponseRedirect:
        """Return a redirect to sign-in, which leads back to the page, or that of a sent form.

        The address of a form in the admin often answers POST only.
        """
        index = reverse("admin:index")
        if request.method in ("GET", "HEAD") or not request.path.startswith(index):
            response: HttpResponseRedirect = super().handle_no_permission(request, view_func)
            return response
        form_page = find_form_page(request, default=index)
        return redirect_to_login(form_page, resolve_url(self.get_login_url(view_func)))

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        """Reset the time zone, as the thread serves other users next."""
        time_zones.set_reader_time_zone("")
        return response


def has_ended_session(request: HttpRequest) -> bool:
    """Return whether the browser sent the cookie of a session that no longer exists."""
    has_cookie = settings.SESSION_COOKIE_NAME in request.COOKIES
    return has_cookie and request.session.is_empty()


def choose_language(request: HttpRequest) -> HttpResponse:
    """Set the language chosen in the menu; signed-in users keep it in their profile."""
    response: HttpResponse = set_language(request)
    user: Any = request.user
    language = request.POST.get(LANGUAGE_PARAMETER, "")
    if user.is_authenticated and translation.check_for_language(language):
        profiles.update_own_profile(user, language=language)
    return response
