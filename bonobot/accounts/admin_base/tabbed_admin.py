"""TabbedAdmin: a model admin with several pages (tabs) and actions per object.

Other packages add pages and actions to a model with the same decorators, so that the model's own
package doesn't depend on them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from django.contrib import messages
from django.core.paginator import Page, Paginator
from django.db.models import Model
from django.http import HttpRequest, HttpResponseNotAllowed, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.functional import Promise

from bonobot.accounts.admin_base.list_versions import describe_list_changes, read_list_version
from bonobot.accounts.admin_base.responses import redirect_back, render_screen
from bonobot.accounts.admin_base.scoped_admin import ScopedAdmin
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound

PAGE_SIZE = 30
FIRST_PAGE = "change"
RequiredActions = Action | tuple[Action, ...]


@dataclass(frozen=True, kw_only=True)
class ObjectPage:
    """A page of an object: a tab, or (without a title) a fragment that a script requests.

    Opening it requires one of `required_actions`.
    """

    slug: str
    title: str | Promise
    required_actions: tuple[Action, ...]
    view: Callable[["ObjectRequest"], HttpResponseBase]
    order: int
    parent_tab: str = ""  # slug of the tab that a page without a title belongs to


@dataclass(frozen=True)
class TabGroup:
    """A tab that leads to several pages: its title, and the slugs of the pages in order."""

    title: str | Promise
    slugs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ObjectAction:
    """An action on an object by POST, which requires one of `required_actions`.

    Without a response, it redirects back.
    """

    slug: str
    required_actions: tuple[Action, ...]
    handle: Callable[["ObjectRequest"], HttpResponseBase | None]


@dataclass(frozen=True)
class ObjectRequest:
    """A request for one object, with its principal and admin."""

    request: HttpRequest
    principal: Principal
    object: Any
    admin: "TabbedAdmin"
    page: str = FIRST_PAGE

    def render_tab(self, template: str, **context: Any) -> HttpResponseBase:
        return render_screen(
            self.request,
            template,
            title=str(self.object),
            visit=self,
            object=self.object,
            opts=self.admin.opts,
            media=self.admin.media,
            tabs=self.admin.build_tabs(self),
            **context,
        )

    def paginate(self, rows: Any) -> Page[Any]:
        """Return the page of the rows that the query asks for."""
        return Paginator(rows, PAGE_SIZE).get_page(self.request.GET.get("page"))

    def url(self, slug: str = FIRST_PAGE) -> str:
        """Return the URL of another page or action of the same object."""
        return reverse(self.admin.get_url_name(slug), args=[self.object.pk])


class TabbedAdmin(ScopedAdmin):
    """A model admin with several pages per object."""

    pages: ClassVar[dict[str, ObjectPage]]
    object_actions: ClassVar[dict[str, ObjectAction]]
    # The tabs in order; a page in none of them is a tab of its own.
    tab_groups: ClassVar[tuple[TabGroup, ...]] = ()
    # More URLs below an object: (route, view that takes `object_id`, last part of the name).
    routes: ClassVar[tuple[tuple[str, Callable[..., HttpResponseBase], str], ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give each subclass its own pages and actions."""
        super().__init_subclass__(**kwargs)
        cls.pages, cls.object_actions = {}, {}

    @classmethod
    def add_page(
        cls,
        slug: str,
        title: str | Promise = "",
        *,
        order: int = 0,
        required_actions: RequiredActions = Action.VIEW,
        parent_tab: str = "",
    ) -> Callable[
        [Callable[[ObjectRequest], HttpResponseBase]], Callable[[ObjectRequest], HttpResponseBase]
    ]:
        """Register a function as a page; `change` is the first tab."""

        def register(view: Callable[[ObjectRequest], HttpResponseBase]) -> Any:
            cls.pages[slug] = ObjectPage(
                slug=slug,
                title=title,
                required_actions=_to_actions(required_actions),
                view=view,
                order=order,
                parent_tab=parent_tab,
            )
            return view

        return register

    @classmethod
    def add_object_action(
        cls, slug: str, *, required_actions: RequiredActions
    ) -> Callable[
        [Callable[[ObjectRequest], HttpResponseBase | None]],
        Callable[[ObjectRequest], HttpResponseBase | None],
    ]:
        """Register a function as an action for POST requests."""

        def register(handle: Callable[[ObjectRequest], HttpResponseBase | None]) -> Any:
            cls.object_actions[slug] = ObjectAction(
                slug=slug, required_actions=_to_actions(required_actions), handle=handle
            )
            return handle

        return register

    def get_url_name(self, slug: str) -> str:
        return f"admin:{self._build_route_name(slug)}"

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of all pages and actions, then Django's."""
        urls = [
            path(
                f"<uuid:object_id>/{slug}/",
                self.admin_site.admin_view(build_view(slug)),
                name=self._build_route_name(slug),
            )
            for entries, build_view in (
                (self.pages, self._build_page_view),
                (self.object_actions, self._build_action_view),
            )
            for slug in entries
            if slug != FIRST_PAGE
        ]
        urls += [
            path(
                f"<uuid:object_id>/{route}",
                self.admin_site.admin_view(view),
                name=self._build_route_name(name),
            )
            for route, view, name in self.routes
        ]
        return [*urls, *super().get_urls()]

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Show the object's first page."""
        return self._build_page_view(FIRST_PAGE)(request, object_id=object_id)

    def count_pending(self, visit: ObjectRequest) -> dict[str, int]:
        """Return how many rows of a page wait for a person, by slug; the tabs show it."""
        return {}

    def build_tabs(self, visit: ObjectRequest) -> list[dict[str, Any]]:
        """Return the tabs that the user may open, each with its pages."""
        pending = self.count_pending(visit)
        parent_tab = self.pages[visit.page].parent_tab if visit.page in self.pages else ""
        pages: dict[str, dict[str, Any]] = {
            page.slug: {
                "title": page.title,
                "url": visit.url(page.slug),
                "active": page.slug == (parent_tab or visit.page),
                "pending": pending.get(page.slug, 0),
            }
            for page in sorted(self.pages.values(), key=lambda page: page.order)
            if page.title and any(map(visit.principal.may, page.required_actions))
        }
        groups: list[tuple[Any, list[dict[str, Any]]]] = [
            (group.title, [pages.pop(slug) for slug in group.slugs if slug in pages])
            for group in self.tab_groups
        ]
        groups += [(page["title"], [page]) for page in pages.values()]
        return [
            {
                "title": title,
                "url": group_pages[0]["url"],
                "active": any(page["active"] for page in group_pages),
                "pending": sum(page["pending"] for page in group_pages),
                "pages": group_pages,
            }
            for title, group_pages in groups
            if group_pages
        ]

    def get_object_or_404(self, request: HttpRequest, object_id: Any) -> Any:
        """Return the object of the active organization; raises `NotFound`."""
        instance: Model | None = self.get_object(request, str(object_id))
        if instance is None:
            raise NotFound(
                format_message(
                    "The {kind} doesn't exist or was deleted.", kind=self.opts.verbose_name
                ),
                remedy="Check the organization you are working in.",
            )
        return instance

    def _build_page_view(self, slug: str) -> Callable[..., HttpResponseBase]:
        def view(request: HttpRequest, object_id: Any) -> HttpResponseBase:
            page = self.pages[slug]
            principal = self.get_principal(request)
            read_list_version(request)
            # Look up first: missing objects are 404 for every role.
            instance = self.get_object_or_404(request, object_id)
            _require_any(principal, page.required_actions)
            return page.view(
                ObjectRequest(request, principal=principal, object=instance, admin=self, page=slug)
            )

        return view

    def _build_action_view(self, slug: str) -> Callable[..., HttpResponseBase]:
        def view(request: HttpRequest, object_id: Any) -> HttpResponseBase:
            if request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            object_action = self.object_actions[slug]
            principal = self.get_principal(request)
            instance = self.get_object_or_404(request, object_id)
            _require_any(principal, object_action.required_actions)
            visit = ObjectRequest(
                request, principal=principal, object=instance, admin=self, page=slug
            )
            if text := describe_list_changes(request, {str(instance.pk): str(instance)}):
                messages.error(request, text)
                return redirect_back(request, visit.url())
            return object_action.handle(visit) or redirect_back(request, visit.url())

        return view

    def _build_route_name(self, slug: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{slug}"


def redirect_to_page(visit: ObjectRequest, slug: str, query: str = "") -> HttpResponseRedirect:
    return HttpResponseRedirect(visit.url(slug) + query)


def _to_actions(required_actions: RequiredActions) -> tuple[Action, ...]:
    return (required_actions,) if isinstance(required_actions, Action) else required_actions


def _require_any(principal: Principal, actions: tuple[Action, ...]) -> None:
    """Raise `Forbidden` unless the principal may do one of the actions."""
    if not any(map(principal.may, actions)):
        principal.require(actions[0])
