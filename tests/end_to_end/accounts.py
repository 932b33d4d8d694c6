"""Accounts for browser tests, signed in without the form, which has its own tests."""

from django.conf import settings
from django.test import Client
from playwright.sync_api import Page

from bonobot.accounts.current_organization import ORGANIZATION_SESSION_KEY
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from tests import factories


def sign_in(page: Page, user: User, organization: Organization, base_url: str) -> None:
    """Give the browser of the page a session of the user in the organization."""
    client = Client()
    client.force_login(user)
    session = client.session
    session[ORGANIZATION_SESSION_KEY] = organization.slug
    session.save()
    cookie = client.cookies[settings.SESSION_COOKIE_NAME]
    page.context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": base_url}])


def create_member(organization: Organization, role: Role, name: str = "") -> User:
    """Create a user with a role; the default name contains the role and the organization."""
    user: User = User.objects.get(pk=factories.create_member(organization, role, name).id)
    return user
