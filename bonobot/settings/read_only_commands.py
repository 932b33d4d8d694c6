"""Settings of commands that only read rows: without the apps of the admin, REST and sign-in.

Loading these apps takes longer than the rest of such a command. Commands that write or delete rows
need them: Celery sends jobs, and deletions cascade to the rows of other apps.
"""

from logging.config import dictConfig

from bonobot.settings import *  # noqa: F403 - the same settings with fewer apps
from bonobot.settings import BONOBOT_OAUTH, LOGGING, oauth_server

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "bonobot",
    "bonobot.ledger",
    "bonobot.accounts",
    "bonobot.notifications",
    "mcp_servers",
    "agents",
    *oauth_server.build_installed_apps(BONOBOT_OAUTH),
]

# Django's own configuration loads its error pages first; ours replaces all of it.
LOGGING_CONFIG = None
dictConfig(LOGGING)
