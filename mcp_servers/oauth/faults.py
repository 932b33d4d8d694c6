"""What can go wrong while signing in, each with a code that says whose move it is."""

from bonobot.lib.problems import Problem


class OAuthProblem(Problem):
    """Signing in did not work.

    Codes: `oauth_metadata_invalid`, `issuer_mismatch`, `issuer_changed`, `resource_mismatch`,
    `oauth_insecure`, `pkce_unsupported`, `client_unknown`, `token_refused`,
    `authorization_server_unreachable`; those of egress pass through as they are.
    """

    code = "oauth_failed"
    status = 502
    title = "Signing in failed"


class LoginNeeded(OAuthProblem):
    """Nobody but a person can go on: there is no grant, or it was withdrawn."""

    code = "needs_reauth"


class Transient(OAuthProblem):
    """The authorization server is away; the same may work later."""

    code = "authorization_server_unreachable"
    status = 503
