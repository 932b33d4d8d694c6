"""Notices: what was told, what waits, and what was given up."""

import django_filters
from rest_framework.response import Response

from bonobot.notices import outbox
from bonobot.notices.api.shapes import NoticeShape
from bonobot.notices.events import EVENTS
from bonobot.notices.models import Notice
from bonobot.tenancy.api.filters import Filters
from bonobot.tenancy.api.resources import Resource, named_in_path
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.roles import Action


class NoticeFilter(Filters):
    """What notices are looked for by."""

    channel = django_filters.UUIDFilter(field_name="channel_id", label="Id of the channel")
    state = django_filters.ChoiceFilter(choices=Notice.State.choices)
    event = django_filters.ChoiceFilter(choices=[(code, code) for code in EVENTS])
    subject = django_filters.CharFilter(field_name="subject_id", label="Id of what it is about")
    since = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")


class Notices(Resource):
    """The outbox."""

    rules = {"GET": Action.VIEW_AUDIT}
    queryset = Notice.objects.none()
    filterset_class = NoticeFilter
    orderings = ("created_at", "severity", "state")

    @operation("list_notices", answer=NoticeShape(many=True))
    def get(self, request: object) -> Response:
        """List the notices of the last thirty days, the latest first."""
        rows = Notice.objects.for_organization(self.organization_id).select_related("channel")
        return self.listed(rows, NoticeShape)


class RetryNotice(Resource):
    """Another attempt at one notice."""

    rules = {"POST": Action.MANAGE_NOTICES}

    @operation("retry_notice", answer=NoticeShape)
    def post(self, request: object, notice_id: str) -> Response:
        """Have a notice that waits or was given up tried again at once."""
        rows = Notice.objects.select_related("channel")
        with named_in_path("notice_id"):
            notice: Notice = rows.get_or_404(self.organization_id, pk=notice_id)
        outbox.retry(self.principal, notice)
        return self.shown(notice, NoticeShape)
