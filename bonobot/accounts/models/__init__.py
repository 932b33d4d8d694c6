"""Models of organizations, users, tokens, invitations and identity providers."""

from bonobot.accounts.models.account_emails import AccountEmail
from bonobot.accounts.models.deletions import Deletion
from bonobot.accounts.models.external_issuers import Issuer
from bonobot.accounts.models.idempotency import StoredResponse
from bonobot.accounts.models.identity_providers import Identity, Provider
from bonobot.accounts.models.invitations import Invitation
from bonobot.accounts.models.organizations import (
    FirstRun,
    Membership,
    Organization,
    OrganizationQuerySet,
    User,
)
from bonobot.accounts.models.sign_in import Attempts, FactorSecret
from bonobot.accounts.models.tokens import Token, TokenQuerySet

__all__ = [
    "AccountEmail",
    "Attempts",
    "Deletion",
    "FactorSecret",
    "FirstRun",
    "Identity",
    "Invitation",
    "Issuer",
    "Membership",
    "Organization",
    "OrganizationQuerySet",
    "Provider",
    "StoredResponse",
    "Token",
    "TokenQuerySet",
    "User",
]
