"""App configuration, only while switched on."""

from django.apps import AppConfig


class OAuthServerConfig(AppConfig):
    """Bonobot as an authorization server."""

    name = "bonobot.oauth_server"
    label = "authority"
    verbose_name = "Authorization server"
