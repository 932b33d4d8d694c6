"""Signed-in browsers: Django's table of sessions, with a query that is compiled once."""

from typing import Any

from django.contrib.sessions.backends import db
from django.db.models import CharField, DateTimeField
from django.utils import timezone

from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter

_UNEXPIRED_SESSION = PreparedQuery(
    lambda: db.SessionStore.get_model_class().objects.filter(
        session_key=QueryParameter("key", output_field=CharField()),
        expire_date__gt=QueryParameter("now", output_field=DateTimeField()),
    )
)


class SessionStore(db.SessionStore):
    """Sessions in the database."""

    def _get_session_from_db(self) -> Any:
        """Return the row of the session, or None if it expired or doesn't exist."""
        session = _UNEXPIRED_SESSION.fetch_first(key=self.session_key, now=timezone.now())
        if session is None:
            self._session_key = None
        return session
