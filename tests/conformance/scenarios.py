"""What of the official conformance suite is played when, and what is not supported."""

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"

# Played in every run of the tests; `make conformance` plays all that a revision names.
SELECTION = (
    (MODERN, "sep-2322-client-request-state"),
    (MODERN, "auth/scope-step-up"),
    (MODERN, "auth/authorization-server-migration"),
    (HANDSHAKE, "auth/pre-registration"),
)
# Extensions that no revision scores.
UNSUPPORTED = (
    "auth/enterprise-managed-authorization",
    "auth/dpop",
    "auth/dpop-nonce",
    "auth/wif-jwt-bearer",
)
