"""Middleware that requires sign-in and sets the user's language and time zone."""

from typing import Any

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse
from django.utils import translation
from django.views.i18n import set_language

from bonobot.accounts import profiles
from bonobot.core.i18n import localization

LANGUAGE_PARAMETER = "language"


class SignInLocaleMiddleware(LoginRequiredMiddleware):
    """Require sign-in where needed, and activate the user's language and time zone.

    One middleware does both, so that requests that need neither don't load the user.
    """

    def process_view(
        self, request: HttpRequest, view_func: Any, view_args: Any, view_kwargs: Any
    ) -> Any:
        """Return a redirect to the sign-in page, or None to continue."""
        localization.set_reader_time_zone(getattr(request.user, "time_zone", ""))
        user_language = getattr(request.user, "language", "")
        if user_language:
            translation.activate(user_language)
            request.LANGUAGE_CODE = translation.get_language()
        return super().process_view(request, view_func, view_args, view_kwargs)

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        """Reset the time zone, as the thread serves other users next."""
        localization.set_reader_time_zone("")
        return response


def choose_language(request: HttpRequest) -> HttpResponse:
    """Set the language chosen in the menu; signed-in users keep it in their profile."""
    response: HttpResponse = set_language(request)
    user: Any = request.user
    language = request.POST.get(LANGUAGE_PARAMETER, "")
    if user.is_authenticated and translation.check_for_language(language):
        profiles.update_own_profile(user, language=language)
    return response
