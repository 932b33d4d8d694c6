"""Django's entry for the authorization server; there only while it is on."""

from django.apps import AppConfig


class AuthorityConfig(AppConfig):
    """Bonobot as an authorization server."""

    name = "bonobot.authority"
    label = "authority"
    verbose_name = "Authorization server"
