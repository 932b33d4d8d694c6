"""Limits and defaults that operators may change, each with its unit and what enforces it.

`.env.example` explains each variable to operators.
"""

from bonobot.core import environment

KIB = 1024
MIB = 1024 * KIB

# --- Calls ---------------------------------------------------------------------------------------

# Calls a minute of one agent, and of one token: `agents.calls.admit`.
BONOBOT_CALLS_PER_MINUTE = environment.read_number("BONOBOT_CALLS_PER_MINUTE", 60, minimum=1)
# Calls a minute of an organization; 0 is no limit: `agents.calls.admit`.
BONOBOT_ORG_CALLS_PER_MINUTE = environment.read_number("BONOBOT_ORG_CALLS_PER_MINUTE", 0, minimum=0)
# Calls a minute of the whole installation; 0 is no limit: `agents.calls.admit`.
BONOBOT_GLOBAL_CALLS_PER_MINUTE = environment.read_number(
    "BONOBOT_GLOBAL_CALLS_PER_MINUTE", 0, minimum=0
)
# Bytes of a result that a model receives: `agents.calls.inspect_result`.
BONOBOT_RESULT_LIMIT = environment.read_number(
    "BONOBOT_RESULT_LIMIT", 256 * KIB, minimum=KIB, maximum=64 * MIB
)
# Bytes of text of one answer of a model: `agents.llm.pydantic_ai_adapter`.
BONOBOT_ANSWER_LIMIT = environment.read_number(
    "BONOBOT_ANSWER_LIMIT", MIB, minimum=KIB, maximum=16 * MIB
)
# Bytes of readable thinking that are kept of one answer: `agents.llm.pydantic_ai_adapter`.
BONOBOT_THINKING_LIMIT = environment.read_number(
    "BONOBOT_THINKING_LIMIT", 64 * KIB, minimum=0, maximum=MIB
)
# Hours until an approval expires: `agents.approvals.services`.
BONOBOT_APPROVAL_H = environment.read_number("BONOBOT_APPROVAL_H", 24, minimum=1, maximum=720)
# Days until an access request expires, and pending ones of one person or token:
# `agents.access_requests`.
BONOBOT_ACCESS_REQUEST_DAYS = environment.read_number(
    "BONOBOT_ACCESS_REQUEST_DAYS", 14, minimum=1, maximum=90
)
BONOBOT_PENDING_ACCESS_REQUESTS = environment.read_number(
    "BONOBOT_PENDING_ACCESS_REQUESTS", 20, minimum=1, maximum=200
)
# Seconds to wait for a client's answer: `agents.gateway.suspended_calls`.
BONOBOT_ANSWER_S = environment.read_number("BONOBOT_ANSWER_S", 300, minimum=1, maximum=3_600)

# --- Sessions ------------------------------------------------------------------------------------

# Seconds that a session's call or turn waits for its rate limit, or for a budget that others have
# reserved: `agents.calls.admit`, `agents.model_endpoints.request_budget`.
BONOBOT_ADMISSION_WAIT_S = environment.read_number(
    "BONOBOT_ADMISSION_WAIT_S", 300, minimum=0, maximum=3_600
)

# Turns for one message: `agents.services`.
BONOBOT_TURNS_PER_MESSAGE = environment.read_number("BONOBOT_TURNS_PER_MESSAGE", 50, minimum=1)
# Calls for one message: `agents.services`.
BONOBOT_CALLS_PER_MESSAGE = environment.read_number("BONOBOT_CALLS_PER_MESSAGE", 200, minimum=1)
# Seconds that a session works on one message, waits excluded: `agents.services`.
BONOBOT_RUN_S = environment.read_number("BONOBOT_RUN_S", 3_600, minimum=1)
# Crashes of its worker in a row after which a session is quarantined:
# `agents.sessions.dead_runners`.
BONOBOT_QUARANTINE_CRASHES = environment.read_number(
    "BONOBOT_QUARANTINE_CRASHES", 2, minimum=1, maximum=100
)
# Tokens a day that a server may use by sampling: `mcp_servers.client_capabilities`.
BONOBOT_SAMPLING_TOKENS = environment.read_number("BONOBOT_SAMPLING_TOKENS", 10_000, minimum=0)

# --- Connections to servers ----------------------------------------------------------------------

# Seconds to connect: `mcp_servers.build_endpoint`.
BONOBOT_CONNECT_S = environment.read_number("BONOBOT_CONNECT_S", 30, minimum=1, maximum=600)
# Seconds without data from a server: `mcp_servers.build_endpoint`.
BONOBOT_READ_S = environment.read_number("BONOBOT_READ_S", 60, minimum=1, maximum=3_600)
# Bytes of one result, whether it comes as a line, an event or a response:
# `mcp_servers.build_endpoint`. The deprecated `BONOBOT_MAX_LINE` raises the default.
BONOBOT_MAX_BODY = environment.read_number(
    "BONOBOT_MAX_BODY",
    max(
        4 * MIB,
        environment.read_number("BONOBOT_MAX_LINE", KIB, minimum=KIB, maximum=64 * MIB),
    ),
    minimum=KIB,
    maximum=256 * MIB,
)
# Definitions of one server: `mcp_servers.build_endpoint`.
BONOBOT_MAX_DEFINITIONS = environment.read_number(
    "BONOBOT_MAX_DEFINITIONS", 1_000, minimum=1, maximum=100_000
)

# Seconds that a session waits for its servers when it starts: `agents.sessions.connect_servers`.
BONOBOT_SESSION_CONNECT_S = environment.read_number(
    "BONOBOT_SESSION_CONNECT_S", 5, minimum=1, maximum=60
)
# Child sessions of one session that run at once: `agents.sessions.child_sessions`.
BONOBOT_PARALLEL_CHILD_SESSIONS = environment.read_number(
    "BONOBOT_PARALLEL_CHILD_SESSIONS", 8, minimum=1, maximum=200
)
# Seconds that an MCP session (handshake era) is kept after the session of an agent that used it; 0
# keeps none: `mcp_servers.client.pool`.
BONOBOT_HTTP_SESSION_IDLE_S = environment.read_number(
    "BONOBOT_HTTP_SESSION_IDLE_S", 300, minimum=0, maximum=86_400
)
# MCP sessions that one process keeps: `mcp_servers.client.pool`.
BONOBOT_HTTP_SESSIONS = environment.read_number(
    "BONOBOT_HTTP_SESSIONS", 100, minimum=0, maximum=10_000
)

# --- Child processes of stdio servers ------------------------------------------------------------

# Seconds to start: `mcp_servers.build_endpoint`.
BONOBOT_START_S = environment.read_number("BONOBOT_START_S", 10, minimum=1, maximum=600)
# Seconds to install a package: `mcp_servers.reinstall_package`.
BONOBOT_INSTALL_S = environment.read_number("BONOBOT_INSTALL_S", 600, minimum=10, maximum=3_600)
# Children on one host: `mcp_servers.client.stdio_pool`.
BONOBOT_STDIO_CHILDREN = environment.read_number(
    "BONOBOT_STDIO_CHILDREN", 32, minimum=1, maximum=10_000
)
# Seconds that a request waits for a child at this limit: `mcp_servers.client.stdio_pool`.
BONOBOT_STDIO_WAIT_S = environment.read_number("BONOBOT_STDIO_WAIT_S", 30, minimum=0, maximum=600)
# Seconds without a call until a child is stopped: `mcp_servers.client.pool`.
BONOBOT_STDIO_IDLE_S = environment.read_number("BONOBOT_STDIO_IDLE_S", 300, minimum=1)
# Seconds until a child is replaced: `mcp_servers.client.stdio_pool`.
BONOBOT_STDIO_LIFETIME_S = environment.read_number("BONOBOT_STDIO_LIFETIME_S", 86_400, minimum=60)
# MiB of memory; 0 is no limit: `mcp_servers.build_endpoint`.
BONOBOT_STDIO_MEMORY_MIB = environment.read_number("BONOBOT_STDIO_MEMORY_MIB", 4_096, minimum=0)
# Processes; 0 is no limit: `mcp_servers.build_endpoint`.
BONOBOT_STDIO_PROCESSES = environment.read_number("BONOBOT_STDIO_PROCESSES", 4_096, minimum=0)
# Open files; 0 is no limit: `mcp_servers.build_endpoint`.
BONOBOT_STDIO_OPEN_FILES = environment.read_number("BONOBOT_STDIO_OPEN_FILES", 4_096, minimum=0)
# Seconds of CPU time; 0 is no limit: `mcp_servers.build_endpoint`.
BONOBOT_STDIO_CPU_S = environment.read_number("BONOBOT_STDIO_CPU_S", 3_600, minimum=0)

# --- Health checks -------------------------------------------------------------------------------

# Seconds between checks: `mcp_servers.health.check_delays`.
BONOBOT_CHECK_EVERY_S = environment.read_number("BONOBOT_CHECK_EVERY_S", 60, minimum=10)
# Seconds between checks of stdio servers without a child: `mcp_servers.health.check_delays`.
BONOBOT_CHECK_STDIO_EVERY_S = environment.read_number(
    "BONOBOT_CHECK_STDIO_EVERY_S", 600, minimum=10
)
# Failed checks until a server counts as down: `mcp_servers.health.outages`.
BONOBOT_DOWN_AFTER = environment.read_number("BONOBOT_DOWN_AFTER", 3, minimum=1, maximum=100)
# Servers whose change notifications a process receives:
# `mcp_servers.subscriptions.list_changed`.
BONOBOT_WATCHED_SERVERS = environment.read_number(
    "BONOBOT_WATCHED_SERVERS", 200, minimum=0, maximum=10_000
)

# --- Requests to Bonobot, and its processes ------------------------------------------------------

# Seconds to receive the headers: `bonobot.processes.http_protocol`.
BONOBOT_REQUEST_HEAD_S = environment.read_number(
    "BONOBOT_REQUEST_HEAD_S", 10, minimum=1, maximum=600
)
# Seconds to receive the body: `bonobot.processes.http_protocol`.
BONOBOT_REQUEST_BODY_S = environment.read_number(
    "BONOBOT_REQUEST_BODY_S", 30, minimum=1, maximum=3_600
)
# Seconds in which a client must read 1 KiB a second of a response that waits for it:
# `bonobot.processes.http_protocol`.
BONOBOT_RESPONSE_S = environment.read_number("BONOBOT_RESPONSE_S", 30, minimum=1, maximum=3_600)
# Seconds to finish work when stopping: `bonobot.processes.programs`, `agents.sessions.worker`.
BONOBOT_DRAIN_S = environment.read_number("BONOBOT_DRAIN_S", 20, minimum=0, maximum=3_600)
# Connections of a process to PostgreSQL: `bonobot.core.db.database_url`.
BONOBOT_DATABASE_POOL = environment.read_number(
    "BONOBOT_DATABASE_POOL", 20, minimum=4, maximum=1_000
)
# Threads of a worker in addition to those of scheduled tasks: `bonobot.settings`.
BONOBOT_WORKER_THREADS = environment.read_number(
    "BONOBOT_WORKER_THREADS", 16, minimum=1, maximum=1_000
)

# --- Retention and accounts ----------------------------------------------------------------------

# Days that audit entries are kept; 0 is forever: `bonobot.accounts.audit_retention`.
BONOBOT_AUDIT_DAYS = environment.read_number("BONOBOT_AUDIT_DAYS", 0, minimum=0)
# Days until an invitation expires: `bonobot.accounts.invitations`.
BONOBOT_INVITATION_DAYS = environment.read_number(
    "BONOBOT_INVITATION_DAYS", 7, minimum=1, maximum=90
)
# Hours until a password reset link expires: `bonobot.accounts.password_reset`.
BONOBOT_PASSWORD_RESET_H = environment.read_number(
    "BONOBOT_PASSWORD_RESET_H", 4, minimum=1, maximum=72
)
