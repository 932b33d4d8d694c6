"""URLs of the authorization server; included only if it is enabled."""

from django.urls import path

from bonobot.oauth_server import views as oauth_server_views

app_name = "oauth_server"
urlpatterns = [
    path(
        ".well-known/oauth-authorization-server", oauth_server_views.serve_metadata, name="metadata"
    ),
    path("oauth/authorize", oauth_server_views.authorize, name="authorize"),
    path("oauth/token", oauth_server_views.issue_tokens, name="token"),
    path("oauth/revoke", oauth_server_views.revoke_token, name="revoke"),
    path("oauth/register", oauth_server_views.register_client, name="register"),
]
