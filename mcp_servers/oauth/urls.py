"""Addresses of logins, below `/oauth/`."""

from django.urls import path

from mcp_servers.oauth import views

app_name = "oauth"
urlpatterns = [
    path("start/<uuid:server_id>", views.start, name="start"),
    path("callback", views.callback, name="callback"),
    path("client-metadata.json", views.client_metadata, name="client-metadata"),
]
