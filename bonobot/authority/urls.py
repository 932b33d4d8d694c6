"""Addresses of the authorization server; there only while it is on."""

from django.urls import path

from bonobot.authority import views

app_name = "authority"
urlpatterns = [
    path(".well-known/oauth-authorization-server", views.metadata, name="metadata"),
    path("oauth/authorize", views.authorize, name="authorize"),
    path("oauth/token", views.token, name="token"),
    path("oauth/revoke", views.revoke, name="revoke"),
    path("oauth/register", views.register, name="register"),
]
