"""What of the official conformance suite is played when, and what is not supported."""

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"

# Played in every run of the tests, of the client's role; `make conformance` plays all that a
# revision names, of both.
SELECTION = (
    (MODERN, "sep-2322-client-request-state"),
    (MODERN, "auth/scope-step-up"),
    (MODERN, "auth/authorization-server-migration"),
    (HANDSHAKE, "auth/pre-registration"),
)
# Of the server's role, beside what is required: the extension of tasks.
TASKS = (
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-status-notifications",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
)
# What the gateway passes beside what is required of it.
BEYOND = {
    MODERN: (
        *TASKS,
        "json-schema-2020-12",
        "http-header-validation",
        "http-custom-header-server-validation",
    ),
    HANDSHAKE: ("server-session-lifecycle", "json-schema-2020-12"),
}
# Recommended, not required: for streams that are taken up again, and for notices.
TOLERATED = (
    "server-sse-priming-event",
    "server-sse-retry-field",
    # Which wait for a worker that reads the catalog again; no sooner than it has, lists change.
    "sep-2575-server-sends-tools-list-changed-on-subscription",
    "sep-2575-server-sends-prompts-list-changed-on-subscription",
)
# Extensions that no revision scores.
UNSUPPORTED = (
    "auth/enterprise-managed-authorization",
    "auth/dpop",
    "auth/dpop-nonce",
    "auth/wif-jwt-bearer",
)
