"""ScopedAdmin: a model admin for one organization's rows, with role checks.

Also the paginator of its lists, whose cost doesn't grow with the table.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Never, cast

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, ActionForm
from django.contrib.admin.sites import AdminSite
from django.contrib.admin.views.main import SEARCH_VAR
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import escape
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import get_language
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base.form_conflicts import describe_last_change
from bonobot.accounts.admin_base.form_versions import build_page_request
from bonobot.accounts.admin_base.list_versions import (
    LIST_VERSION_FIELD,
    describe_list_changes,
    insert_list_version,
    read_list_version,
)
from bonobot.accounts.admin_base.responses import add_deleted_message, add_problem_to_form
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.deletions import restorable_kinds
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import ALLOWED_ROLES, PLATFORM_ONLY, Action
from bonobot.accounts.templatetags.display import ago
from bonobot.core.admin.theme import ModelAdmin, Select, checkbox, display
from bonobot.core.db.object_version import VersionConflict
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, NotFound, Problem

# An exact count reads every matching row, and page 201 is never opened.
MAX_LISTED = 10_000
# A search scans rows without an index until it has this many matches.
MAX_FOUND = 1_000


UNSET_VALUE = "value-of-the-row"


@lru_cache(maxsize=16)
def _render_action_checkbox(_language: str) -> str:
    return str(checkbox.render(ACTION_CHECKBOX_NAME, UNSET_VALUE))


class BoundedPaginator(Paginator):
    """Counts and lists at most `limit` rows; `more` is set if there are others."""

    def __init__(self, *args: Any, limit: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limit = limit or MAX_LISTED

    @cached_property
    def count(self) -> int:
        return min(self._counted, self.limit)

    @property
    def more(self) -> bool:
        """Return whether there are rows after the last page."""
        return self._counted > self.limit

    @cached_property
    def _counted(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[: self.limit + 1].count())


class ScopedAdmin(ModelAdmin):
    """A model admin for the active organization.

    Viewing needs one of the actions `needs_to_view`, changing needs `needs_to_change`; None means
    that no user may.
    `platform_only` rows belong to no organization; only platform administrators see them.
    Subclasses save and delete through services, which check permissions and write the audit log. A
    `Problem` raised there becomes an error at its field. Django's admin log isn't written.
    """

    needs_to_view: ClassVar[tuple[Action, ...]] = (Action.VIEW,)
    needs_to_change: ClassVar[Action | None] = None
    platform_only: ClassVar[bool] = False
    # What not even a role with these actions can do.
    can_add: ClassVar[bool] = True
    can_change: ClassVar[bool] = True
    can_delete: ClassVar[bool] = True
    # Whether the list has actions for the selected rows.
    has_bulk_actions: ClassVar[bool] = True
    # Actions (of roles) that admin actions need, if not `needs_to_change`.
    action_needs: ClassVar[dict[str, Action]] = {}
    # Form fields by the field that a problem names.
    problem_fields: ClassVar[dict[str, str]] = {}

    empty_value_display = SafeString('<span class="bb-none">–</span>')
    search_help_text: Any = ""

    # The name of the rows below the list, if not the model's.
    counted_as: ClassVar[Any] = ""

    # The button and page that add a row: their words, if not "Add" with the model's name, and the
    # button's URL name.
    add_label: ClassVar[Any] = ""
    add_url_name: ClassVar[str] = ""

    # An empty list shows a Material Symbol and what to do first.
    empty_icon: ClassVar[str] = "inbox"
    empty_text: ClassVar[Any] = ""
    # Columns that change rows, and the columns that users without permission see instead.
    change_columns: ClassVar[dict[str, str]] = {}

    def __init__(self, model: type[Model], admin_site: AdminSite) -> None:
        """Name the rows in the placeholder of the search, unless the class says what it is."""
        super().__init__(model, admin_site)
        if not self.search_help_text:
            rows = self.counted_as or model._meta.verbose_name_plural
            self.search_help_text = format_lazy(_("Search {rows}"), rows=rows)

    # Rows that the pages of the list have, if fewer than `BoundedPaginator` counts.
    max_paged: ClassVar[int | None] = None
    # What deleting a row means, and what to do first if other rows need it.
    delete_note: ClassVar[Any] = ""
    delete_obstacle_note: ClassVar[Any] = ""

    list_filter_submit = True
    list_per_page = 50
    show_full_result_count = False
    compressed_fields = False
    actions_on_top = True
    action_form = ActionForm

    @property
    def adding_roles(self) -> str:
        """Return the roles that may add rows, for people who may not; blank if no role may."""
        needed = self.needs_to_change
        return "" if needed is None or needed in PLATFORM_ONLY else ALLOWED_ROLES[needed]

    def get_principal(self, request: HttpRequest) -> Principal:
        """Return the principal of the request in the active organization."""
        return resolve_principal(request)

    def can_perform(self, request: HttpRequest, action: Action | None) -> bool:
        """Return whether the user may perform `action` in the active organization."""
        if action is None or isinstance(request.user, AnonymousUser):
            return False
        try:
            principal = self.get_principal(request)
        except Problem:
            return False  # no organization yet: pages outside of one can still be shown
        return principal.may(action) and (principal.platform_admin or not self.platform_only)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the active organization's rows."""
        rows = super().get_queryset(request)
        if self.platform_only:
            return rows
        return rows.filter(organization_id=self.get_principal(request).organization_id)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """Return the object and store it on the request for `form_versions`."""
        instance = super().get_object(request, object_id, from_field)
        request.shown_object = instance  # type: ignore[attr-defined]
        return instance

    @display(description=ModelAdmin.action_checkbox.short_description)
    def action_checkbox(self, obj: Model) -> str:
        """Return the checkbox of a row, without rendering its template again for each row."""
        html = _render_action_checkbox(str(get_language()))
        return SafeString(html.replace(UNSET_VALUE, escape(obj.pk)))

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may view the rows."""
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether the role allows one of `needs_to_view`, or to change rows."""
        can_view = any(self.can_perform(request, action) for action in self.needs_to_view)
        return can_view or self.has_change_permission(request, obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether rows can be added, and the role allows `needs_to_change`."""
        return self.can_add and self.can_perform(request, self.needs_to_change)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether rows can be changed, and the role allows `needs_to_change`."""
        return self.can_change and self.can_perform(request, self.needs_to_change)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether rows can be deleted, and the role allows `needs_to_change`."""
        return self.can_delete and self.can_perform(request, self.needs_to_change)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return the bulk actions; Django's, which deletes, is the last."""
        actions: dict[str, Any] = super().get_actions(request) if self.has_bulk_actions else {}
        if delete := actions.pop("delete_selected", None):
            actions["delete_selected"] = (*delete[:2], _("Delete…"))
        return actions

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns, without those that change rows if the user may not."""
        columns = super().get_list_display(request)
        if self.can_perform(request, self.needs_to_change):
            return columns
        shown_columns = (self.change_columns.get(str(column), column) for column in columns)
        return tuple(column for column in shown_columns if column)

    def get_paginator(
        self,
        request: HttpRequest,
        queryset: QuerySet[Any],
        per_page: int,
        *args: Any,
        **kwargs: Any,
    ) -> BoundedPaginator:
        """Return a bounded paginator, with a lower bound for searches and `max_paged`."""
        limit = self.max_paged or (MAX_FOUND if request.GET.get(SEARCH_VAR) else None)
        return BoundedPaginator(queryset, per_page, *args, limit=limit, **kwargs)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the change list; without a filter, reuse the result count as the total.

        A condition of the URL that no filter shows can be cleared like a filter.
        """
        changelist = super().get_changelist_instance(request)
        changelist.has_active_filters |= bool(changelist.get_filters_params())
        if not (changelist.query or changelist.has_active_filters):
            changelist.full_result_count = changelist.result_count
        return changelist

    @display(description=_("created"), ordering="created_at")
    def created(self, row: Any) -> Any:
        return ago(row.created_at)

    # -- Forms: show problems of services at their field ----------------------------------------

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Show the form again with the problem at its field if a service raises one."""
        if object_id is None and self.add_label:
            extra_context = {"title": self.add_label, **(extra_context or {})}
        try:
            with self.explain_denial(request):
                return super().changeform_view(request, object_id, form_url, extra_context)
        except Problem as problem:
            can_save = self.has_add_permission(request) or self.has_change_permission(request)
            if request.method != "POST" or problem.status == 404 or not can_save:
                raise
            request.refusal = problem  # type: ignore[attr-defined]
            response = super().changeform_view(request, object_id, form_url, extra_context)
            if isinstance(problem, Forbidden):
                response.status_code = problem.status
            return response

    def formfield_for_choice_field(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name not in self.radio_fields:
            kwargs.setdefault("widget", Select())
        return super().formfield_for_choice_field(db_field, request, **kwargs)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show a single save button."""
        context |= {"show_save_and_add_another": False, "show_save_and_continue": False}
        return super().render_change_form(request, context, *args, **kwargs)

    def get_form(
        self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any
    ) -> type[forms.ModelForm]:
        """Return the form class, with the problem of this request as its error."""
        base_form: Any = super().get_form(request, obj, change=change, **kwargs)
        if not hasattr(request, "refusal"):
            return _copy_fields(base_form)
        problem: Problem = request.refusal
        field_names = self.problem_fields

        class FormWithProblem(base_form):
            def _post_clean(self) -> None:
                super()._post_clean()
                add_problem_to_form(self, problem, field_names)

        return _copy_fields(FormWithProblem)

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, opts: Any, object_id: str
    ) -> Never:
        """Raise the same `NotFound` for missing rows and those of other organizations."""
        raise NotFound(
            format_message("The {kind} doesn't exist or was deleted.", kind=opts.verbose_name),
            remedy="Check the organization you are working in.",
        )

    # -- Permissions: explain denials -------------------------------------------------------------

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the list or run an action on the selected rows; raises `Forbidden`.

        If a selected row was changed since the list was loaded, show the list instead (409).
        """
        is_action = request.method == "POST"
        action_name = request.POST.get("action", "") if is_action else ""
        # Django would redirect with a message that nothing was selected.
        if action_name in (self.actions or ()) and action_name not in self.get_actions(request):
            raise self.build_permission_error(
                request, self.action_needs.get(action_name, self.needs_to_change)
            )
        posted_version = request.POST.get(LIST_VERSION_FIELD, "")
        version = posted_version if is_action else read_list_version(request)
        with self.explain_denial(request):
            if is_action and (text := describe_list_changes(request, self._load_selected(request))):
                messages.error(request, text)
                return self._show_current_list(request, extra_context)
            response = super().changelist_view(request, extra_context)
        return insert_list_version(response, version)

    def _show_current_list(
        self, request: HttpRequest, extra_context: dict[str, Any] | None
    ) -> HttpResponse:
        page_request = build_page_request(request, request.get_full_path())
        page_request._messages = request._messages  # type: ignore[attr-defined]
        response: HttpResponse = super().changelist_view(page_request, extra_context)
        response.status_code = VersionConflict.status
        insert_list_version(response, read_list_version(request))
        return response

    def _load_selected(self, request: HttpRequest) -> dict[str, str]:
        """Return the names of the selected rows by their IDs in the audit log."""
        rows = self.get_queryset(request)
        if request.POST.get("select_across") != "1":
            rows = rows.filter(pk__in=request.POST.getlist(ACTION_CHECKBOX_NAME))
        return {row_id: str(row) for row in rows for row_id in self.list_audit_ids(row)}

    def list_audit_ids(self, row: Any) -> tuple[str, ...]:
        """Return the IDs that changes of a row have in the audit log."""
        return (str(row.pk),)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Confirm the deletion and its cascade, then delete.

        Raises `Forbidden`.
        """
        restorable_models = {kind.model for kind in restorable_kinds}
        notes = {
            "delete_note": self.delete_note,
            "obstacle_note": self.delete_obstacle_note,
            "restorable": self.opts.label_lower in restorable_models,
            # Part of the form's version: a change in the meantime must be confirmed, too.
            "last_change": describe_last_change(request, object_id),
        }
        with self.explain_denial(request):
            return super().delete_view(request, object_id, {**notes, **(extra_context or {})})

    def response_delete(self, request: HttpRequest, obj_display: str, obj_id: Any) -> HttpResponse:
        """Go to the list; offer to undo the deletion if `delete_model` set `request.deletion`."""
        deletion = getattr(request, "deletion", None)
        if deletion is None:
            return super().response_delete(request, obj_display, obj_id)
        add_deleted_message(request, deletion.name, deletion)
        address = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        return HttpResponseRedirect(reverse(address))

    @contextmanager
    def explain_denial(self, request: HttpRequest) -> Iterator[None]:
        """Replace Django's `PermissionDenied` with an error that says why and who may."""
        try:
            yield
        except PermissionDenied:
            can_view = self.has_view_permission(request)
            needed_action = self.needs_to_change if can_view else self.needs_to_view[0]
            raise self.build_permission_error(request, needed_action) from None

    def build_permission_error(
        self, request: HttpRequest, needed_action: Action | None
    ) -> Forbidden:
        """Return an error that says why the user may not do this, and who may."""
        principal = self.get_principal(request)
        try:
            if needed_action is not None:
                principal.require(needed_action)
        except Forbidden as error:
            return error
        if self.platform_only and not principal.platform_admin:
            rule, remedy = "platform_admin", format_message("Contact a platform administrator.")
        else:
            rule, remedy = (
                "nobody",
                format_message(
                    "These objects are managed automatically and can't be changed here."
                ),
            )
        return Forbidden("This action isn't available here.", rule=rule, remedy=remedy)

    # -- History: the audit log -------------------------------------------------------------------

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect to the audit entries of this object."""
        query = urlencode({"resource_id": object_id})
        return HttpResponseRedirect(f"{reverse('admin:ledger_auditrow_changelist')}?{query}")

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> None:
        """Do nothing: the service writes the audit log."""

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> None:
        """Do nothing: the service writes the audit log."""

    def log_deletions(self, request: HttpRequest, queryset: Any) -> None:
        """Do nothing: the service writes the audit log."""


class ServiceFormAdmin(ScopedAdmin):
    """An admin whose form a service saves: subclasses call it in `save_form`."""

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Do nothing: `save_form` saves the row."""

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Do nothing: the form has no related rows."""


def _copy_fields(form_class: Any) -> type[forms.ModelForm]:
    """Copy a form class's fields, whose choices subclasses set for the organization.

    Otherwise, the form classes of all requests share the declared fields.
    """
    form_class.base_fields = deepcopy(form_class.base_fields)
    return cast("type[forms.ModelForm]", form_class)
