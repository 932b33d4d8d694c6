"""App configuration; installed only if the authorization server is enabled."""

from django.apps import AppConfig


class OAuthServerConfig(AppConfig):
    """The authorization server."""

    name = "bonobot.oauth_server"
    label = "authority"
    verbose_name = "Authorization server"
