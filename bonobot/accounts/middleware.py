"""Language and time zone of the signed-in person."""

from typing import Any

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse
from django.utils import translation
from django.views.i18n import set_language

from bonobot.accounts import profiles
from bonobot.core.i18n import localization

PARAMETER = "language"


class SignInLocaleMiddleware(LoginRequiredMiddleware):
    """Ask for a sign-in where one is needed; speak the language of whoever has one, by their clock.

    Both in one step, since both need the person: no other request loads them.
    """

    def process_view(
        self, request: HttpRequest, view_func: Any, view_args: Any, view_kwargs: Any
    ) -> Any:
        """Return the way to the sign-in, or None to go on."""
        localization.read_in(getattr(request.user, "time_zone", ""))
        own = getattr(request.user, "language", "")
        if own:
            translation.activate(own)
            request.LANGUAGE_CODE = translation.get_language()
        return super().process_view(request, view_func, view_args, view_kwargs)

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        """Leave the thread, which answers others next, with the clock of all."""
        localization.read_in("")
        return response


def choose(request: HttpRequest) -> HttpResponse:
    """Take the language that was chosen in the menu; of a person it is part of their profile."""
    answer: HttpResponse = set_language(request)
    user: Any = request.user
    said = request.POST.get(PARAMETER, "")
    if user.is_authenticated and translation.check_for_language(said):
        profiles.update_own_profile(user, language=said)
    return answer
