"""ScopedAdmin: one organization's rows, by the roles' table, written by the operations alone.

Pages of the admin's lists, whose cost doesn't grow with the list.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, Never

from django import forms
from django.contrib.admin.views.main import SEARCH_VAR
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base.responses import add_problem_to_form
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import ago
from bonobot.core.admin.theme import ModelAdmin, display
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, NotFound, Problem

# An exact count reads every row that fits; nobody turns to page 201.
MOST_LISTED = 10_000
# A search reads the rows themselves, not an index: it goes on until so many fit.
MOST_FOUND = 1_000


class BoundedPaginator(Paginator):
    """Counts up to `most` rows and lists those; `more` tells that there are others."""

    def __init__(self, *args: Any, most: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.most = most or MOST_LISTED

    @cached_property
    def count(self) -> int:
        """Return how many rows can be turned to."""
        return min(self._found, self.most)

    @property
    def more(self) -> bool:
        """Tell whether rows lie behind the last page."""
        return self._found > self.most

    @cached_property
    def _found(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[: self.most + 1].count())


class ScopedAdmin(ModelAdmin):
    """A model's admin within the active organization.

    `needs_to_view` (one of them) and `needs_to_change` name actions of the roles' table; None means
    nobody.
    `platform_only` rows belong to no organization, and only a platform administrator sees them.
    Subclasses save and delete through operation modules, which check and audit; a `Problem` raised
    there comes back as an error at its field. Django's own log isn't written: the audit is the
    history.
    """

    needs_to_view: ClassVar[tuple[Action, ...]] = (Action.VIEW,)
    needs_to_change: ClassVar[Action | None] = None
    platform_only: ClassVar[bool] = False
    # What deeds upon ticked rows need, where it isn't what changing needs.
    action_needs: ClassVar[dict[str, Action]] = {}
    # Names of the form's fields for the fields that operations name.
    problem_fields: ClassVar[dict[str, str]] = {}

    # What the rows are called below the list, where another's model says it in its own words.
    counted_as: ClassVar[Any] = ""

    # What an empty list says: a Material Symbol, and what to do first.
    empty_icon: ClassVar[str] = "inbox"
    empty_text: ClassVar[Any] = ""
    # Columns by which rows are changed, and what others see in their place: "" for nothing.
    changing_columns: ClassVar[dict[str, str]] = {}
    # What it means to remove one, and what to do first where other rows need it.
    removing: ClassVar[Any] = ""
    hindering: ClassVar[Any] = ""

    list_filter_submit = True
    list_per_page = 50
    show_full_result_count = False
    compressed_fields = True
    actions_on_top = True

    def principal(self, request: HttpRequest) -> Principal:
        """Return who asks, in the active organization."""
        return resolve_principal(request)

    def may(self, request: HttpRequest, action: Action | None) -> bool:
        """Tell whether the person may do `action` in the active organization."""
        if action is None or isinstance(request.user, AnonymousUser):
            return False
        try:
            principal = self.principal(request)
        except Problem:
            return False  # of no organization yet: a page outside may still be shown to them
        return principal.may(action) and (principal.platform_admin or not self.platform_only)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the active organization's rows."""
        rows = super().get_queryset(request)
        if self.platform_only:
            return rows
        return rows.filter(organization_id=self.principal(request).organization_id)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """Return the object, and remember which one the page is of (`form_versions`)."""
        found = super().get_object(request, object_id, from_field)
        request.shown_object = found  # type: ignore[attr-defined]
        return found

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Show the model where its rows may be seen."""
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Follow the roles' table."""
        may_view = any(self.may(request, one) for one in self.needs_to_view)
        return may_view or self.has_change_permission(request, obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Follow the roles' table."""
        return self.may(request, self.needs_to_change)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Follow the roles' table."""
        return self.may(request, self.needs_to_change)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Follow the roles' table."""
        return self.may(request, self.needs_to_change)

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns: who may not change a row is offered no way to."""
        columns = super().get_list_display(request)
        if self.may(request, self.needs_to_change):
            return columns
        shown = (self.changing_columns.get(str(one), one) for one in columns)
        return tuple(one for one in shown if one)

    def get_paginator(
        self,
        request: HttpRequest,
        queryset: QuerySet[Any],
        per_page: int,
        *args: Any,
        **kwargs: Any,
    ) -> BoundedPaginator:
        """Return pages that are counted to a bound, a lower one where rows are searched."""
        most = MOST_FOUND if request.GET.get(SEARCH_VAR) else None
        return BoundedPaginator(queryset, per_page, *args, most=most, **kwargs)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list; without a filter the number found is the number that there is."""
        found = super().get_changelist_instance(request)
        if not (found.query or found.has_active_filters):
            found.full_result_count = found.result_count
        return found

    @display(description=_("made"), ordering="created_at")
    def made_at(self, row: Any) -> Any:
        """Return when a row was made."""
        return ago(row.created_at)

    # -- Forms: what an operation refuses comes back at its field --------------------------------

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Show the form again, with the problem at its field, when an operation refuses."""
        try:
            with self.saying_why(request):
                return super().changeform_view(request, object_id, form_url, extra_context)
        except Problem as problem:
            may = self.has_add_permission(request) or self.has_change_permission(request)
            if request.method != "POST" or isinstance(problem, NotFound) or not may:
                raise
            request.refusal = problem  # type: ignore[attr-defined]
            shown = super().changeform_view(request, object_id, form_url, extra_context)
            if isinstance(problem, Forbidden):
                shown.status_code = problem.status
            return shown

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show one way to save: the others are for tables, not for people."""
        context |= {"show_save_and_add_another": False, "show_save_and_continue": False}
        return super().render_change_form(request, context, *args, **kwargs)

    def get_form(
        self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any
    ) -> type[forms.ModelForm]:
        """Return the form; a refusal that this request has met becomes its error."""
        base: Any = super().get_form(request, obj, change=change, **kwargs)
        if not hasattr(request, "refusal"):
            return base
        problem: Problem = request.refusal
        places = self.problem_fields

        class Refused(base):
            def _post_clean(self) -> None:
                super()._post_clean()
                add_problem_to_form(self, problem, places)

        return Refused

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, opts: Any, object_id: str
    ) -> Never:
        """Answer alike for what doesn't exist and what belongs to another organization."""
        raise NotFound(
            format_message(
                "There is no {verbose_name} {object_id!r} here.",
                verbose_name=opts.verbose_name,
                object_id=object_id,
            ),
            remedy="Check the organization that you are working in.",
        )

    # -- What a role doesn't allow is refused with who may ----------------------------------------

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the list, or do something to the ticked rows; raises `Forbidden`."""
        asked = request.POST.get("action", "") if request.method == "POST" else ""
        # Django would lead back and say that nothing was chosen.
        if asked in (self.actions or ()) and asked not in self.get_actions(request):
            raise self.refusal(request, self.action_needs.get(asked, self.needs_to_change))
        with self.saying_why(request):
            return super().changelist_view(request, extra_context)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Ask with what else goes, or say what stands in the way; then remove.

        Raises `Forbidden`.
        """
        about = {"removing": self.removing, "hindering": self.hindering}
        with self.saying_why(request):
            return super().delete_view(request, object_id, {**about, **(extra_context or {})})

    @contextmanager
    def saying_why(self, request: HttpRequest) -> Iterator[None]:
        """Say why and who may, where Django says that permission is denied."""
        try:
            yield
        except PermissionDenied:
            seen = self.has_view_permission(request)
            needed = self.needs_to_change if seen else self.needs_to_view[0]
            raise self.refusal(request, needed) from None

    def refusal(self, request: HttpRequest, needed: Action | None) -> Forbidden:
        """Return why this person may not do what they asked for here, and who may."""
        principal = self.principal(request)
        try:
            if needed is not None:
                principal.require(needed)
        except Forbidden as refused:
            return refused
        if self.platform_only and not principal.platform_admin:
            rule, remedy = "platform_admin", format_message("Ask a platform administrator.")
        else:
            rule, remedy = (
                "nobody",
                format_message("Nobody does this here: it is made where it happens."),
            )
        return Forbidden("This isn't done here.", rule=rule, remedy=remedy)

    # -- The audit is the history ----------------------------------------------------------------

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the audit of this object."""
        query = urlencode({"resource_id": object_id})
        return HttpResponseRedirect(f"{reverse('admin:ledger_auditrow_changelist')}?{query}")

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> None:
        """Write nothing: the operation has audited it."""

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> None:
        """Write nothing: the operation has audited it."""

    def log_deletions(self, request: HttpRequest, queryset: Any) -> None:
        """Write nothing: the operation has audited it."""


class ServiceFormAdmin(ScopedAdmin):
    """An admin whose form an operation writes whole: subclasses call it in `save_form`."""

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Do nothing: `save_form` has written it."""

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Do nothing: there are no related rows in the form."""
