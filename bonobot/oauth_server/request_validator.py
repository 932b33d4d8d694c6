"""The oauthlib validator for authorization codes and refresh tokens.

Each token contains the public key of its grant: `bnc_<key>_…` is a code, `bnr_<key>_…` a refresh
token, `bno_<key>_…` an access token. The database has digests only. Reusing a code or refresh token
revokes the grant (RFC 6749 section 4.1.2, RFC 9700 section 4.14).
"""

import secrets
from hashlib import sha256
from typing import Any

from django.utils import timezone
from oauth2_provider.models import AccessToken, Grant, RefreshToken
from oauth2_provider.oauth2_validators import OAuth2Validator
from oauthlib.oauth2.rfc6749 import errors

from bonobot.accounts.models import Token
from bonobot.accounts.tokens import oauth_grants
from bonobot.oauth_server.authorization_requests import normalize_resource
from bonobot.oauth_server.client_metadata_documents import is_consent_page, is_document_too_old

CODE_PREFIX, REFRESH_PREFIX = "bnc", "bnr"


class OAuthRequestValidator(OAuth2Validator):
    """Connects the toolkit's codes and tokens with grants."""

    def _load_application(self, client_id: str, request: Any) -> Any:
        """Return a client by id; None for an id with NUL, which PostgreSQL refuses to query.

        Also None at a new authorization if the client's metadata document was removed.
        """
        if "\x00" in (client_id or ""):
            return None
        client = super()._load_application(client_id, request)
        if client is not None and is_consent_page(request) and is_document_too_old(client):
            request.client = None
            return None
        return client

    # -- codes -------------------------------------------------------------------------------

    def save_authorization_code(
        self, client_id: str, code: dict[str, str], request: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Create a code for the new grant and store its digest."""
        text = generate_token(CODE_PREFIX, request.grant)
        self._create_authorization_code(request, {"code": hash_token(text)})
        code["code"] = text

    def validate_code(
        self, client_id: str, code: str, client: Any, request: Any, *args: Any, **kwargs: Any
    ) -> bool:
        """Return whether a code belongs to this client and is unused; reuse revokes its grant."""
        row = Grant.objects.filter(code=hash_token(code), application=client).first()
        grant = find_grant(code, CODE_PREFIX)
        if row is None or grant is None:
            return False
        if row.is_expired():
            if grant.digest:
                oauth_grants.end_grant(grant, reason="code_reused")
            return False
        request.scopes, request.user, request.grant = row.scope.split(), row.user, grant
        return True

    def invalidate_authorization_code(
        self, client_id: str, code: str, request: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Mark a code as used; its row is kept for a while to detect reuse."""
        now = timezone.now()
        unused = Grant.objects.filter(code=hash_token(code), expires__gt=now)
        if not unused.update(expires=now):
            raise errors.InvalidGrantError(request=request)

    def confirm_redirect_uri(
        self, client_id: str, code: str, redirect_uri: str, client: Any, *args: Any, **kwargs: Any
    ) -> bool:
        is_confirmed = super().confirm_redirect_uri(
            client_id, hash_token(code), redirect_uri, client
        )
        return bool(is_confirmed)

    def get_code_challenge(self, code: str, request: Any) -> str | None:
        """Return the PKCE challenge of a code."""
        challenge: str | None = super().get_code_challenge(hash_token(code), request)
        return challenge

    def get_code_challenge_method(self, code: str, request: Any) -> str | None:
        """Return the PKCE method of a code."""
        method: str | None = super().get_code_challenge_method(hash_token(code), request)
        return method

    # -- tokens ------------------------------------------------------------------------------

    def validate_refresh_token(
        self, refresh_token: str, client: Any, request: Any, *args: Any, **kwargs: Any
    ) -> bool:
        """Return whether a refresh token belongs to this client; reuse revokes its grant."""
        grant = find_grant(refresh_token, REFRESH_PREFIX)
        is_valid = grant is not None and super().validate_refresh_token(
            refresh_token, client, request
        )
        if is_valid:
            request.grant = grant
        elif grant is not None and _is_used_token(refresh_token):
            oauth_grants.end_grant(grant, reason="refresh_reused")
        return bool(is_valid)

    def _save_bearer_token(
        self, token: dict[str, Any], request: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Rotate the grant's token; of concurrent requests only one succeeds."""
        grant: Token = request.grant
        _check_resource(request, grant)
        used_token = getattr(request, "refresh_token_instance", None)
        if used_token is not None and not _revoke_refresh_token(used_token):
            raise errors.InvalidGrantError(request=request)
        text = oauth_grants.rotate_grant(grant, first=used_token is None)
        if text is None:
            raise errors.InvalidGrantError(request=request)
        token |= {
            "access_token": text,
            "refresh_token": generate_token(REFRESH_PREFIX, grant),
            "expires_in": int(oauth_grants.get_oauth_lifetime("ACCESS_TOKEN").total_seconds()),
            "scope": " ".join(grant.scopes),
        }
        request.resource = [grant.resource]
        access_token = self._create_access_token(
            timezone.now() + oauth_grants.get_oauth_lifetime("ACCESS_TOKEN"),
            request,
            token,
            used_token,
        )
        self._create_refresh_token(request, token["refresh_token"], access_token, used_token)

    def revoke_token(
        self, token: str, token_type_hint: str, request: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Revoke the grant of a token (RFC 7009); tokens of other clients are ignored."""
        conditions = {"token_checksum": hash_token(token), "application": request.client}
        is_own_token = any(
            model.objects.filter(**conditions).exists() for model in (AccessToken, RefreshToken)
        )
        super().revoke_token(token, token_type_hint, request)
        grant = find_grant(token)
        if is_own_token and grant is not None:
            oauth_grants.end_grant(grant, reason="program")


def hash_token(text: str) -> str:
    """Return the stored digest of a token; tokens have enough entropy for a plain hash."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def generate_token(prefix: str, grant: Token) -> str:
    return f"{prefix}_{grant.key}_{secrets.token_urlsafe(32)}"


def find_grant(text: str, *prefixes: str) -> Token | None:
    """Return the grant that a token names, or None; doesn't validate the token."""
    prefix, _, secret_part = text.partition("_")
    key = secret_part.partition("_")[0]
    if (prefixes and prefix not in prefixes) or not key.isalnum():
        return None
    grant: Token | None = Token.objects.filter(key=key, user__isnull=False).first()
    return grant


def _is_used_token(refresh_token: str) -> bool:
    rows = RefreshToken.objects.filter(token_checksum=hash_token(refresh_token))
    return bool(rows.exclude(revoked=None).exists())


def _revoke_refresh_token(refresh_token: Any) -> bool:
    """Revoke a refresh token and its access token; return False if it was already revoked."""
    active = RefreshToken.objects.filter(pk=refresh_token.pk, revoked=None)
    if not active.update(revoked=timezone.now(), access_token=None):
        return False
    AccessToken.objects.filter(pk=refresh_token.access_token_id).delete()
    return True


def _check_resource(request: Any, grant: Token) -> None:
    """Raise if a request names another resource than the grant's (RFC 8707)."""
    requested = [value for name, value in request.decoded_body or () if name == "resource"]
    if any(normalize_resource(resource) != grant.resource for resource in requested):
        raise errors.CustomOAuth2Error(
            error="invalid_target",
            description="This grant is for another resource.",
            request=request,
        )
