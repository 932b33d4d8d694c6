"""Admin of users, organizations and members."""

from typing import Any

from allauth.mfa.models import Authenticator
from django import forms
from django.contrib import messages
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.db.models import Count, Exists, Model, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from bonobot.accounts import members, organizations
from bonobot.accounts.admin.change_roles import confirm_or_change_roles
from bonobot.accounts.admin.invitations import query_open_invitations, render_state_badge
from bonobot.accounts.admin_base.responses import render_screen
from bonobot.accounts.admin_base.scoped_admin import ScopedAdmin, ServiceFormAdmin
from bonobot.accounts.current_organization import ORGANIZATION_SESSION_KEY
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.password_reset import record_password_change, send_reset_link
from bonobot.accounts.roles import ROLE_CHOICES, Action, Role
from bonobot.accounts.second_factor import STRONG_TYPES, reset_second_factor
from bonobot.accounts.templatetags.display import ago
from bonobot.accounts.views.first_account import PASSWORD_HELP
from bonobot.core.admin.theme import (
    AdminPasswordChangeForm,
    Select,
    TextInput,
    UserChangeForm,
    UserCreationForm,
    action,
    display,
    register,
)
from bonobot.core.text.untrusted_text import make_visible

MAX_INVITED_SHOWN = 50
MAX_NAME_SHOWN = 80


class CreateUserForm(UserCreationForm):
    """A username and a password, which is not that of the person who reads the form."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["password1"].help_text = PASSWORD_HELP


class ChangePasswordForm(AdminPasswordChangeForm):
    """A new password for another user."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["password1"].help_text = PASSWORD_HELP


@register(User)
class UserAdmin(DjangoUserAdmin, ScopedAdmin):  # type: ignore[misc]  # both are model admins
    """Users of the platform; created by platform administrators."""

    platform_only = True
    add_label = _("Create user")
    needs_to_change = Action.MANAGE_ORGANIZATION
    can_delete = False  # users are disabled, so that their name stays readable
    form = UserChangeForm
    add_form = CreateUserForm
    change_password_form = ChangePasswordForm
    list_display = ("username", "full_name", "roles", "platform", "is_active", "last_sign_in")
    list_filter = ("is_active", "is_superuser")
    search_fields = ("username", "first_name", "last_name", "email")
    filter_horizontal = ()
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        (_("Person"), {"fields": ("first_name", "last_name", "email", "language", "time_zone")}),
        (_("Access"), {"fields": ("is_active", "is_superuser")}),
    )
    add_fieldsets = (
        (None, {"classes": ("wide",), "fields": ("username", "password1", "password2")}),
    )
    readonly_fields = ("last_login",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        """Return the users with their memberships, which the list shows."""
        return super().get_queryset(request).prefetch_related("memberships__organization")

    @display(description=_("platform administrator"), ordering="is_superuser")
    def platform(self, user: User) -> str:
        """Return whether the user manages the platform."""
        return _t("Yes") if user.is_superuser else "–"

    @display(description=_("last sign-in"), ordering="last_login")
    def last_sign_in(self, user: User) -> Any:
        """Return how long ago the user signed in."""
        return ago(user.last_login)

    @display(description=_("name"))
    def full_name(self, user: User) -> str:
        """Return the first and last name."""
        return user.get_full_name() or "–"

    @display(description=_("roles"))
    def roles(self, user: User) -> str:
        memberships = user.memberships.all()
        labels = [
            f"{member.organization.name}: {member.get_role_display()}" for member in memberships
        ]
        return ", ".join(labels) or "–"

    def user_change_password(
        self, request: HttpRequest, id: str, form_url: str = ""
    ) -> HttpResponse:
        """Change a user's password on Django's page; record and announce it."""
        with record_password_change(id, self.get_principal(request)):
            response: HttpResponse = super().user_change_password(request, id, form_url)
        return response

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        members.save_user(self.get_principal(request), obj, form.changed_data, adding=not change)


@register(Organization)
class OrganizationAdmin(ScopedAdmin):
    """Organizations: all for platform administrators, else one's own."""

    add_label = _("Create organization")
    needs_to_change = Action.MANAGE_ORGANIZATION
    can_delete = False  # the audit log must survive accidental deletion
    list_display = ("name", "slug", "member_count", "created")
    search_fields = ("name", "slug")
    fieldsets = (
        (None, {"fields": ("name", "slug")}),
        (_("Call approvals"), {"fields": ("four_eyes", "approval_hours")}),
        (_("Rate limit"), {"fields": ("calls_per_minute",)}),
        (_("Sign-in"), {"fields": ("second_factor", "single_sign_on")}),
        (_("Audit log"), {"fields": ("audit_days",)}),
        (_("Registry"), {"fields": ("registry", "show_registry_url")}),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Make the slug of an existing organization read-only: folders are named after it."""
        return ("slug", "show_registry_url") if obj else ("show_registry_url",)

    def get_prepopulated_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Derive the slug of a new organization from its name."""
        return {} if obj else {"slug": ("name",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Organization]:
        """Return all organizations for platform administrators, else the active one."""
        principal = self.get_principal(request)
        rows = Organization.objects.annotate(member_count=Count("memberships"))
        return rows if principal.platform_admin else rows.filter(pk=principal.organization_id)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is a platform administrator."""
        return (
            self.can_perform(request, self.needs_to_change)
            and self.get_principal(request).platform_admin
        )

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the only organization to those who can't create others, else the list."""
        principal = self.get_principal(request)
        if self.has_view_permission(request) and not principal.platform_admin:
            url = reverse("admin:tenancy_organization_change", args=[principal.organization_id])
            return HttpResponseRedirect(url)
        return super().changelist_view(request, extra_context)

    def response_add(
        self, request: HttpRequest, obj: Organization, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Switch to the new organization, whose dashboard shows its first steps."""
        request.session[ORGANIZATION_SESSION_KEY] = obj.slug
        name = make_visible(obj.name, MAX_NAME_SHOWN)
        messages.success(request, _t("Switched to the new organization %(name)s.") % {"name": name})
        return HttpResponseRedirect(reverse("admin:index"))

    @display(description=_("registry URL"))
    def show_registry_url(self, organization: Organization) -> str:
        """Return the base URL that clients are configured with."""
        return organization.registry_url if organization.slug else ""

    @display(description=_("members"), ordering="member_count")
    def member_count(self, organization: Any) -> int:
        """Return how many members it has."""
        return int(organization.member_count)

    def save_model(self, request: HttpRequest, obj: Organization, form: Any, change: bool) -> None:
        organizations.save_organization(self.get_principal(request), obj, adding=not change)


class MembershipForm(forms.ModelForm):
    """A username and a role; a text field, as users of other organizations must not be listed."""

    username = forms.CharField(
        label=_("Username"),
        widget=TextInput(attrs={"autocomplete": "off"}),
        help_text=_("Of an existing user. Invite people without an account by email."),
    )

    class Meta:
        model = Membership
        fields = ("role",)
        widgets = {"role": Select(choices=ROLE_CHOICES)}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.instance._state.adding:
            field = self.fields["username"]
            field.initial, field.disabled = self.instance.user.get_username(), True


@register(Membership)
class MembershipAdmin(ServiceFormAdmin):
    """The active organization's members and their roles."""

    add_label = _("Add member")
    needs_to_change = Action.MANAGE_MEMBERS
    delete_note = _("The person loses access to this organization. The account is kept.")
    form = MembershipForm
    fields = ("username", "role")
    list_display = ("person", "full_name", "email", "role", "last_sign_in", "has_factor", "created")
    readonly_fields = ("full_name", "email", "last_sign_in", "has_factor", "created")
    actions = ("change_role_chosen", "offer_chosen", "reset_chosen")
    list_filter = ("role",)
    ordering = ("user__username",)
    search_fields = ("user__username", "user__first_name", "user__last_name", "user__email")
    change_list_template = "admin/members/list.html"

    @display(description=_("Username"))
    def username(self, member: Membership) -> str:
        """Return the username, for people who may not change the role."""
        return member.user.get_username()

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Show the person of an existing member next to the role."""
        return (*self.fields, *self.readonly_fields) if obj else self.fields

    @display(description=_("email"), ordering="user__email")
    def email(self, member: Membership) -> str | None:
        return member.user.email or None

    @display(description=_("last sign-in"), ordering="user__last_login")
    def last_sign_in(self, member: Membership) -> Any:
        return ago(member.user.last_login)

    @display(description=_("member"), ordering="user__username")
    def person(self, member: Membership) -> str:
        return member.user.get_username()

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is a platform administrator; others invite."""
        return super().has_add_permission(request) and self.get_principal(request).platform_admin

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the open invitations above the members."""
        context = extra_context or {}
        if self.can_perform(request, self.needs_to_change):
            rows = query_open_invitations(self.get_principal(request))[:MAX_INVITED_SHOWN]
            context |= {
                "invitations": [{"row": row, "badge": render_state_badge(row)} for row in rows]
            }
        return super().changelist_view(request, context)

    def list_audit_ids(self, row: Membership) -> tuple[str, ...]:
        """Return the IDs of the membership and of the user."""
        return (str(row.pk), str(row.user_id))

    @action(description=_("Change role…"), permissions=["change"])
    def change_role_chosen(
        self, request: HttpRequest, queryset: QuerySet[Membership]
    ) -> HttpResponseBase | None:
        """Confirm who gets which role, then change the roles of the selected members."""
        members = list(queryset.select_related("organization"))
        return confirm_or_change_roles(self, request, members)

    @action(description=_("Reset second factor"), permissions=["change"])
    def reset_chosen(
        self, request: HttpRequest, queryset: QuerySet[Membership]
    ) -> HttpResponseRedirect:
        """Reset the second factors of the selected members and end their sessions."""
        members = list(queryset)
        for member in members:
            reset_second_factor(self.get_principal(request), member.user)
        text = ngettext(
            "The second factor of %(n)d person was reset. They now sign in with a password only.",
            "The second factor of %(n)d people was reset. They now sign in with a password only.",
            len(members),
        )
        messages.success(request, text % {"n": len(members)})
        return HttpResponseRedirect(reverse("admin:tenancy_membership_changelist"))

    @action(description=_("Send password reset link"), permissions=["change"])
    def offer_chosen(
        self, request: HttpRequest, queryset: QuerySet[Membership]
    ) -> HttpResponseBase:
        """Mail reset links; show those that can't be mailed to platform administrators."""
        users = [member.user for member in queryset]
        links = [(user, send_reset_link(self.get_principal(request), user)) for user in users]
        if unmailed := [(user, link) for user, link in links if link]:
            return render_screen(
                request,
                "members/password_link.html",
                title=_("Password reset links"),
                reset_links=unmailed,
                opts=self.opts,
            )
        text = ngettext("%(n)d link sent.", "%(n)d links sent.", len(links))
        messages.success(request, text % {"n": len(links)})
        return HttpResponseRedirect(reverse("admin:tenancy_membership_changelist"))

    @display(description=_("second factor"))
    def has_factor(self, member: Any) -> str:
        """Return whether the user has a second factor."""
        return _t("configured") if member.has_factor else _t("none")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Membership]:
        """Return the members with whether they have a second factor."""
        factors = Authenticator.objects.filter(user=OuterRef("user"), type__in=STRONG_TYPES)
        rows = super().get_queryset(request).select_related("user")
        return rows.annotate(has_factor=Exists(factors))

    @display(description=_("name"), ordering="user__last_name")
    def full_name(self, member: Membership) -> str | None:
        return member.user.get_full_name() or None

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Membership:
        """Add or update the member with the service."""
        principal, role = self.get_principal(request), Role(form.cleaned_data["role"])
        if not change:
            return members.add_member(principal, form.cleaned_data["username"], role)
        member = Membership.objects.get(pk=form.instance.pk)
        members.update_member_role(principal, member, role)
        return member

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        """Remove the member with the service."""
        members.remove_member(self.get_principal(request), obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Membership]) -> None:
        """Remove each member with the service."""
        for member in queryset:
            members.remove_member(self.get_principal(request), member)
