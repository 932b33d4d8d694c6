"""Which scenarios of the official conformance suite run when, and which aren't supported."""

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"

# The client scenarios of every test run; `make conformance` runs all scenarios of a revision, of
# both roles.
SELECTION = (
    (MODERN, "sep-2322-client-request-state"),
    (MODERN, "auth/scope-step-up"),
)
# Server scenarios of the tasks extension, which aren't required.
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
# Scenarios that the gateway passes in addition to the required ones.
BEYOND = {
    MODERN: (
        *TASKS,
        "json-schema-2020-12",
        "http-header-validation",
        "http-custom-header-server-validation",
    ),
    HANDSHAKE: ("server-session-lifecycle", "json-schema-2020-12", "server-sse-polling"),
}
# Recommended, not required: for resumed streams and notifications.
TOLERATED = (
    "server-sse-priming-event",
    "server-sse-retry-field",
    # These wait for a worker to refresh the definitions; lists change only then.
    "sep-2575-server-sends-tools-list-changed-on-subscription",
    "sep-2575-server-sends-prompts-list-changed-on-subscription",
)
# Calls with an external effect: with the labels that Bonobot suggests for the SDK's server, they
# need approval after the caller has received private data and untrusted content.
NEED_APPROVAL = ("tools-call-sampling", "tools-call-elicitation")
# Client scenarios with servers of 2025-03-26, which have no resource metadata.
EARLIER_SERVERS = (
    "auth/2025-03-26-oauth-metadata-backcompat",
    "auth/2025-03-26-oauth-endpoint-fallback",
)
# The skills extension, as a server and as a client. Bonobot lists no directories, so the first one
# is skipped by the suite.
SERVER_SKILLS = (
    "sep-2640-skills-directory",
    "sep-2640-skills-enumeration",
    "sep-2640-skills-manifest",
)
CLIENT_SKILLS = (
    "sep-2640-client-no-prefetch",
    "sep-2640-client-verify-digest",
    "sep-2640-client-verify-size",
    "sep-2640-client-verify-frontmatter",
)
# Extensions that no revision requires.
UNSUPPORTED = ("auth/enterprise-managed-authorization",)
# Scenarios of authorization servers, which are the same in all revisions but for a check.
AUTHORIZATION_SERVER = ("authorization-server-metadata-endpoint", "authorization-code-grant")
AUTHORIZATION_REVISIONS = ("2025-03-26", "2025-06-18", HANDSHAKE, MODERN)
