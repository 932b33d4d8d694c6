"""URLs under /oauth/."""

from django.urls import path

from mcp_servers.oauth_client import views as oauth_client_views

app_name = "oauth"
urlpatterns = [
    path("start/<uuid:server_id>", oauth_client_views.start_login, name="start"),
    path("callback", oauth_client_views.complete_login, name="callback"),
    path("client-metadata.json", oauth_client_views.show_client_metadata, name="client-metadata"),
]
