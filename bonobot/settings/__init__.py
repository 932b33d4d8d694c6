"""Django settings, read from environment variables with defaults for a single machine.

By default: SQLite, Celery's filesystem broker and generated keys in `var/`, loopback only. With
`DATABASE_URL` and `REDIS_URL`: PostgreSQL and Redis, any number of hosts. Every variable can be
given as `NAME_FILE`. `.env.example` lists them.
"""

import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import SimpleLazyObject

from bonobot import __version__
from bonobot.core import environment
from bonobot.core.crypto import key_files
from bonobot.core.db import database_url
from bonobot.core.i18n.catalogs import compile_catalogs
from bonobot.core.telemetry import logging
from bonobot.jobs import queues
from bonobot.processes.process_status import read_running_url
from bonobot.settings import admin as admin_settings
from bonobot.settings import email as email_settings
from bonobot.settings import oauth_server, scheduled_tasks
from bonobot.settings.accounts import *  # noqa: F403 - settings of other apps
from bonobot.settings.accounts import PEOPLE_APPS
from bonobot.settings.limits import *  # noqa: F403 - read through `django.conf.settings`
from bonobot.settings.limits import BONOBOT_DATABASE_POOL, BONOBOT_WORKER_THREADS, MIB


def list_interpreter_paths() -> tuple[str, ...]:
    """Return the paths of the running interpreter: as started, then its other names.

    A virtual environment has `python`, `python3` and `python3.x`, and a launcher may use any.
    """
    interpreter = Path(sys.executable)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = (interpreter.with_name(name) for name in ("python", "python3", version))
    aliases = (path for path in candidates if path.resolve() == interpreter.resolve())
    return tuple(dict.fromkeys((str(interpreter), *map(str, aliases))))


BASE_DIR = Path(__file__).resolve().parents[2]

# --- Locations and addresses --------------------------------------------------------------------

# Next to manage.py in a checkout; in the current folder if installed from a wheel.
_is_checkout = (BASE_DIR / "manage.py").is_file()
_parent_folder = BASE_DIR if _is_checkout else Path.cwd()
BONOBOT_VAR = key_files.ensure_private_folder(
    Path(environment.read_text("BONOBOT_VAR", str(_parent_folder / "var"))).expanduser().absolute()
)
# Commands use the address of the `bonobot up` that runs with this folder.
BONOBOT_URL = environment.read_origin(
    "BONOBOT_URL", read_running_url(BONOBOT_VAR) or "http://127.0.0.1:8000"
)
BONOBOT_OAUTH_CLIENT_ID = environment.read_document_url("BONOBOT_OAUTH_CLIENT_ID")
# A folder with a folder for each organization (its ID), with tokens of the platform.
BONOBOT_WORKLOAD_TOKENS = environment.read_text("BONOBOT_WORKLOAD_TOKENS")
BONOBOT_OAUTH, BONOBOT_OAUTH_DOCUMENTS, BONOBOT_OAUTH_REGISTRATION, BONOBOT_OAUTH_SCHEMES = (
    oauth_server.read_oauth_settings()
)
OAUTH2_PROVIDER = oauth_server.build_toolkit_settings(
    BONOBOT_URL, BONOBOT_OAUTH_SCHEMES, BONOBOT_OAUTH_DOCUMENTS
)
# bonobot.W101 covers what follows from `BONOBOT_URL`; the load balancer handles the rest.
SILENCED_SYSTEM_CHECKS = [
    *oauth_server.SILENCED_CHECKS,
    "templates.W003",  # our library `i18n` replaces Django's, on purpose
    *(f"security.W0{number}" for number in ("04", "05", "08", "12", "16", "21")),
]

# Access to /metrics: none unless one of these is set.
BONOBOT_METRICS_TOKEN = environment.read_secret("BONOBOT_METRICS_TOKEN")
BONOBOT_METRICS_NETWORKS = environment.read_networks("BONOBOT_METRICS_NETWORKS")
# The OTLP/HTTP collector of traces.
BONOBOT_TRACES = environment.read_text("BONOBOT_TRACES")
# The OTLP/HTTP collector of the durations of MCP requests.
BONOBOT_OTLP_METRICS = environment.read_text("BONOBOT_OTLP_METRICS")
# The address of the worker's and scheduler's health probes; the web process uses its own.
BONOBOT_PROBE_ADDRESS = environment.read_address("BONOBOT_PROBE_ADDRESS")

_url = urlsplit(BONOBOT_URL)
_uses_https = _url.scheme == "https"
_host = f"[{_url.hostname}]" if ":" in str(_url.hostname) else str(_url.hostname)

# --- Security -----------------------------------------------------------------------------------

DEBUG = environment.read_flag("BONOBOT_DEBUG", False)


def _read_or_create_key(variable: str, file: str, generate: Any) -> str:
    return environment.read_secret(
        variable, lambda: key_files.read_or_create_text(BONOBOT_VAR / "keys" / file, generate)
    )


SECRET_KEY = _read_or_create_key("BONOBOT_SECRET_KEY", "secret_key", key_files.generate_secret_key)
SECRET_KEY_FALLBACKS = (
    environment.read_secret("BONOBOT_SECRET_KEY_FALLBACKS").replace(",", " ").split()
)
FIELD_ENCRYPTION_KEY = key_files.parse_field_keys(
    _read_or_create_key("BONOBOT_FIELD_KEYS", "field_keys", key_files.generate_field_key),
    name="BONOBOT_FIELD_KEYS",
)
# The file of the keys, if any: processes reload it when it changes.
BONOBOT_FIELD_KEYS_PATH = environment.find_value_file(
    "BONOBOT_FIELD_KEYS", BONOBOT_VAR / "keys" / "field_keys"
)
BONOBOT_TOKEN_PEPPERS = key_files.parse_peppers(
    _read_or_create_key("BONOBOT_TOKEN_PEPPERS", "token_peppers", key_files.generate_peppers),
    name="BONOBOT_TOKEN_PEPPERS",
)

BONOBOT_AUDIT_KEYS = key_files.parse_signing_keys(
    _read_or_create_key("BONOBOT_AUDIT_KEYS", "audit_keys", key_files.generate_signing_key),
    name="BONOBOT_AUDIT_KEYS",
)

# Other Host headers are refused, which prevents DNS rebinding.
_hosts = environment.read_names("BONOBOT_ALLOWED_HOSTS", ("localhost", "127.0.0.1", "[::1]"))
ALLOWED_HOSTS = list(dict.fromkeys((*_hosts, _host)))
BONOBOT_CORS_ORIGINS = environment.read_origins("BONOBOT_CORS_ORIGINS")
CSRF_TRUSTED_ORIGINS = [BONOBOT_URL]
CSRF_FAILURE_VIEW = "bonobot.core.http.error_pages.show_csrf_failure"
# Browsers accept a cookie with the `__Host-` prefix only from this exact host over TLS.
_cookie = "__Host-bonobot_{}" if _uses_https else "bonobot_{}"
SESSION_ENGINE = "bonobot.accounts.session_store"
SESSION_COOKIE_NAME = _cookie.format("session")
CSRF_COOKIE_NAME = _cookie.format("csrf")
BONOBOT_DEVICE_COOKIE = _cookie.format("device")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _uses_https
SECURE_HSTS_SECONDS = 31_536_000 if _uses_https else 0
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * MIB
DATA_UPLOAD_MAX_NUMBER_FIELDS = 5_000  # "approve these N" posts a field for each definition

AUTH_USER_MODEL = "tenancy.User"

# --- Django -------------------------------------------------------------------------------------

INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",  # before the admin, whose templates it replaces
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    "bonobot.admin_pages.AdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "bonobot",
    "bonobot.ledger",
    "bonobot.accounts",
    "bonobot.notifications",
    "mcp_servers",
    "agents",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_celery_beat",
    "encrypted_model_fields",
    *oauth_server.build_installed_apps(BONOBOT_OAUTH),
    *PEOPLE_APPS,
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "bonobot.core.http.response_headers.add_browser_policy",
    "bonobot.core.http.cors.handle_cross_origin",
    "bonobot.core.http.static_files.StaticFilesMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "bonobot.accounts.middleware.SignInLocaleMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "bonobot.urls"
ASGI_APPLICATION = "bonobot.asgi.application"
APPEND_SLASH = False
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        # In `DIRS`, so that our templates override those of other apps.
        "DIRS": [(BASE_DIR if _is_checkout else BASE_DIR / "bonobot") / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "bonobot.accounts.views.login.build_layout_context",
            ],
            "libraries": {"i18n": "bonobot.core.i18n.template_tags"},
        },
    }
]

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("de", "Deutsch")]  # in their own language
LOCALE_PATHS = [BASE_DIR / "bonobot" / "locale"]
if _is_checkout:  # A wheel contains the compiled catalogs.
    compile_catalogs(LOCALE_PATHS[0])
USE_I18N = True
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "/static/"
STATIC_ROOT = BONOBOT_VAR / "static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "bonobot.core.http.static_storage.StaticFilesStorage"},
}
SERVESTATIC_USE_FINDERS = True  # directly from the packages, without collectstatic
SERVESTATIC_MAX_AGE = 600
SERVESTATIC_ALLOW_ALL_ORIGINS = False

# --- Data ---------------------------------------------------------------------------------------

DATABASES = {
    "default": database_url.build_database_settings(
        environment.read_secret("DATABASE_URL"),
        var=BONOBOT_VAR,
        pool_size=BONOBOT_DATABASE_POOL,
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = environment.read_secret("REDIS_URL")
if REDIS_URL and urlsplit(REDIS_URL).scheme not in {"redis", "rediss", "unix"}:
    raise ImproperlyConfigured("`REDIS_URL` must be like `redis://:password@host:6379/0`.")
# The prefix of keys and channels, for installations that share a Redis.
BONOBOT_REDIS_PREFIX = environment.read_text("BONOBOT_REDIS_PREFIX", "bonobot")
CACHES: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": BONOBOT_REDIS_PREFIX,
    }
    if REDIS_URL
    # Shared by the web processes of this host: it counts failed attempts with second factors.
    else {
        "BACKEND": "django.core.cache.backends.filebased.FileBasedCache",
        "LOCATION": BONOBOT_VAR / "cache",
        # More counters than this would delete some of them.
        "OPTIONS": {"MAX_ENTRIES": 100_000},
    }
}

# --- Work (Celery) ------------------------------------------------------------------------------


def _build_broker_options() -> dict[str, Any]:
    folder = key_files.ensure_private_folder(BONOBOT_VAR / "broker")
    return {
        "data_folder_in": str(key_files.ensure_private_folder(folder / "messages")),
        "data_folder_out": str(folder / "messages"),
        "control_folder": str(key_files.ensure_private_folder(folder / "control")),
        "polling_interval": 0.1,
    }


CELERY_BROKER_URL = REDIS_URL or "filesystem://localhost"
CELERY_BROKER_TRANSPORT_OPTIONS = (
    {"global_keyprefix": f"{BONOBOT_REDIS_PREFIX}:"} if REDIS_URL else _build_broker_options()
)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TIMEZONE = "UTC"
CELERY_WORKER_POOL = "threads"
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# Messages are only triggers: the database is authoritative, and a sweep recovers lost messages.
CELERY_TASK_ACKS_LATE = False
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = queues.DEFAULT_QUEUE
# Lazy: loading kombu takes a tenth of a second.
CELERY_TASK_QUEUES = SimpleLazyObject(queues.build_task_queues)
CELERY_TASK_DEFAULT_ROUTING_KEY = queues.DEFAULT_QUEUE
CELERY_TASK_ROUTES = queues.build_task_routes()
CELERY_BEAT_SCHEDULER = "bonobot.jobs.celery_beat:BonobotScheduler"
CELERY_BEAT_SCHEDULE = scheduled_tasks.build_default_schedule(with_oauth=BONOBOT_OAUTH)

# Each scheduled task uses at most one thread (`ExclusiveTask`).
CELERY_WORKER_CONCURRENCY = len(CELERY_BEAT_SCHEDULE) + BONOBOT_WORKER_THREADS

# --- Email ----------------------------------------------------------------------------------------

BONOBOT_EMAIL_URL = environment.read_secret("BONOBOT_EMAIL_URL")
BONOBOT_EMAIL_FROM = email_settings.read_sender_address("BONOBOT_EMAIL_FROM", "bonobot@localhost")
_mail_server = email_settings.parse_mail_server("BONOBOT_EMAIL_URL", BONOBOT_EMAIL_URL)
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if _mail_server.host else 'dummy'}.EmailBackend"
EMAIL_HOST, EMAIL_PORT = _mail_server.host, _mail_server.port
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _mail_server.user, _mail_server.password
EMAIL_USE_TLS, EMAIL_USE_SSL = _mail_server.starttls, _mail_server.tls
EMAIL_TIMEOUT = 10
DEFAULT_EXCEPTION_REPORTER = "bonobot.core.http.error_pages.MaskingExceptionReporter"
DEFAULT_FROM_EMAIL = SERVER_EMAIL = BONOBOT_EMAIL_FROM

# --- REST ---------------------------------------------------------------------------------------

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "bonobot.accounts.api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "bonobot.core.api.exception_handler.handle_exception",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Bonobot",
    "DESCRIPTION": "Governed MCP tools for AI agents.",
    "VERSION": __version__,
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api",
    "SERVE_INCLUDE_SCHEMA": False,
    "DEFAULT_GENERATOR_CLASS": "bonobot.accounts.api.openapi_schema.SerializedSchemaGenerator",
    # Names of enums for generated clients, where several fields have the same name.
    "ENUM_NAME_OVERRIDES": {
        "AccessRequestKind": "agents.models.AccessRequest.Kind",
        "PersonRequestState": "agents.models.Approval.State",
        "AuditOutcome": "bonobot.ledger.models.AuditRow.Outcome",
        "InstallationState": ["needed", "installing", "installed", "failed"],
        "PersonLanguage": ["en", "de"],
        "SnippetLanguage": ["json", "toml", "sh"],
        "ServerScope": ["pool", "agent"],
        "BudgetScope": ["organization", "agent", "session", "server"],
        "CallOutcome": ["ok", "error", "unknown"],
        "BudgetUnit": "agents.models.Budget.Unit",
        "ServerBudgetUnit": ["microusd", "calls", "seconds"],
        "ChannelKind": "bonobot.notifications.models.NotificationChannel.Kind",
        "DefinitionKind": "mcp_servers.models.Definition.Kind",
        "EndpointKind": "agents.models.ModelEndpoint.Kind",
        "SeenLabel": ["private_data", "untrusted_content"],
        "ReplayStatus": "agents.models.Replay.Status",
        "NoticeState": "bonobot.notifications.models.Notification.State",
        "NoticeSeverity": "bonobot.notifications.models.SEVERITIES",
        "ServerStatus": "mcp_servers.models.Server.Status",
        "SessionStatus": "agents.models.Session.Status",
        "TriggerKind": "agents.models.Trigger.Kind",
        "StepKind": "agents.models.Step.Kind",
        "TokenKind": ["token", "grant"],
        "TestStatus": ["connected", "error", "needs_reauth"],
        "Transport": ["stdio", "http", "openapi"],
        "TransportAlias": ["stdio", "openapi", "http", "sse", "streamable_http"],
    },
    "COMPONENT_SPLIT_REQUEST": True,
    "SWAGGER_UI_DIST": "SIDECAR",
    # Expanding several hundred operations at once takes a browser many seconds.
    "SWAGGER_UI_SETTINGS": {"docExpansion": "none", "filter": True, "deepLinking": True},
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

# --- Admin --------------------------------------------------------------------------------------

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Bonobot",
    "SITE_HEADER": "Bonobot",
    "SITE_SYMBOL": "hub",
    "SHOW_VIEW_ON_SITE": False,
    "SHOW_LANGUAGES": True,
    "BORDER_RADIUS": "8px",
    "COLORS": {"primary": admin_settings.PRIMARY},
}

# --- Logs ---------------------------------------------------------------------------------------

LOGGING_CONFIG: str | None = "logging.config.dictConfig"
LOGGING = logging.build_logging_config(
    level=environment.read_text("BONOBOT_LOG_LEVEL", "INFO", choices=logging.LEVELS),
    style=environment.read_text("BONOBOT_LOG_FORMAT", "auto", choices=logging.STYLES),
)

# --- Servers and calls --------------------------------------------------------------------------

BONOBOT_TOOL_NAME_STYLE = environment.read_text(
    "BONOBOT_TOOL_NAME_STYLE", "single", choices=("single", "double")
)
# MCP extensions that are relayed between clients and servers: `mcp_servers.client.mcp_extensions`.
BONOBOT_EXTENSIONS = environment.read_names(
    "BONOBOT_EXTENSIONS", ("io.modelcontextprotocol/ui", "io.modelcontextprotocol/skills")
)
# Server cards of public registries: `agents.gateway.server_registry`.
BONOBOT_SERVER_CARDS = environment.read_flag("BONOBOT_SERVER_CARDS", False)
# How definitions of new servers are reviewed unless their configuration says otherwise.
BONOBOT_DEFINITION_REVIEW = environment.read_text(
    "BONOBOT_DEFINITION_REVIEW", "manual", choices=("manual", "first", "always")
)
BONOBOT_LAUNCHERS = (
    *environment.read_names(
        "BONOBOT_LAUNCHERS", ("npx", "uvx", "node", "python", "python3", "docker")
    ),
    *list_interpreter_paths(),  # for packages installed in the same environment
)
BONOBOT_PRESET_FOLDERS = environment.read_folders("BONOBOT_PRESET_FOLDERS")
BONOBOT_STDIO_SANDBOX = environment.read_text(
    "BONOBOT_STDIO_SANDBOX", "sandbox", choices=("sandbox", "namespaces", "bubblewrap", "none")
)
BONOBOT_EGRESS_PROXY = environment.read_secret("BONOBOT_EGRESS_PROXY")
if BONOBOT_EGRESS_PROXY and not BONOBOT_EGRESS_PROXY.startswith("http://"):
    raise ImproperlyConfigured(
        "`BONOBOT_EGRESS_PROXY` must be like `http://user:password@host:3128`."
    )
BONOBOT_AUDIT_HEADS = Path(
    environment.read_text("BONOBOT_AUDIT_HEADS", str(BONOBOT_VAR / "audit-heads"))
).expanduser()
BONOBOT_AUDIT_ARCHIVE = environment.read_text("BONOBOT_AUDIT_ARCHIVE")
