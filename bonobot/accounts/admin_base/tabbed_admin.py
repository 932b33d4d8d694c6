"""TabbedAdmin: a model admin with several pages (tabs) and actions per object.

Other packages add pages and actions to a model with the same decorators, so that the model's own
package doesn't depend on them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from django.db.models import Model
from django.http import HttpRequest, HttpResponseNotAllowed, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.functional import Promise

from bonobot.accounts.admin_base.responses import redirect_back, render_screen
from bonobot.accounts.admin_base.scoped_admin import ScopedAdmin
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound

FIRST = "change"
Needs = Action | tuple[Action, ...]


@dataclass(frozen=True, kw_only=True)
class ObjectPage:
    """A page of an object: a tab, or (without a title) a fragment that a script requests.

    Opening it needs one of the actions `needs`.
    """

    slug: str
    title: str | Promise
    needs: tuple[Action, ...]
    view: Callable[["ObjectRequest"], HttpResponseBase]
    order: int
    under: str = ""  # slug of the tab that a page without a title belongs to


@dataclass(frozen=True, kw_only=True)
class ObjectAction:
    """An action on an object by POST; without a response, it redirects back."""

    slug: str
    needs: Action
    do: Callable[["ObjectRequest"], HttpResponseBase | None]


@dataclass(frozen=True)
class ObjectRequest:
    """A request for one object, with its principal and admin."""

    request: HttpRequest
    principal: Principal
    object: Any
    admin: "TabbedAdmin"
    page: str = FIRST

    def show(self, template: str, **context: Any) -> HttpResponseBase:
        """Return the tab rendered as a page."""
        return render_screen(
            self.request,
            template,
            title=str(self.object),
            visit=self,
            object=self.object,
            opts=self.admin.opts,
            media=self.admin.media,
            tabs=self.admin.tabs(self),
            **context,
        )

    def url(self, slug: str = FIRST) -> str:
        """Return the URL of another page or action of the same object."""
        return reverse(self.admin.url_name(slug), args=[self.object.pk])


class TabbedAdmin(ScopedAdmin):
    """A model admin with several pages per object."""

    pages: ClassVar[dict[str, ObjectPage]]
    deeds: ClassVar[dict[str, ObjectAction]]
    # More URLs below an object: (route, view that takes `object_id`, last part of the name).
    routes: ClassVar[tuple[tuple[str, Callable[..., HttpResponseBase], str], ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give each subclass its own pages and actions."""
        super().__init_subclass__(**kwargs)
        cls.pages, cls.deeds = {}, {}

    @classmethod
    def add_page(
        cls,
        slug: str,
        title: str | Promise = "",
        *,
        order: int = 0,
        needs: Needs = Action.VIEW,
        under: str = "",
    ) -> Callable[
        [Callable[[ObjectRequest], HttpResponseBase]], Callable[[ObjectRequest], HttpResponseBase]
    ]:
        """Register a function as a page; `change` is the first tab."""

        def register(view: Callable[[ObjectRequest], HttpResponseBase]) -> Any:
            several = (needs,) if isinstance(needs, Action) else needs
            cls.pages[slug] = ObjectPage(
                slug=slug, title=title, needs=several, view=view, order=order, under=under
            )
            return view

        return register

    @classmethod
    def add_deed(
        cls, slug: str, *, needs: Action
    ) -> Callable[
        [Callable[[ObjectRequest], HttpResponseBase | None]],
        Callable[[ObjectRequest], HttpResponseBase | None],
    ]:
        """Register a function as an action for POST requests."""

        def register(do: Callable[[ObjectRequest], HttpResponseBase | None]) -> Any:
            cls.deeds[slug] = ObjectAction(slug=slug, needs=needs, do=do)
            return do

        return register

    def url_name(self, slug: str) -> str:
        """Return the URL name of a page or action."""
        return f"admin:{self._name(slug)}"

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of all pages and actions, then Django's."""
        found = [
            path(
                f"<uuid:object_id>/{slug}/",
                self.admin_site.admin_view(make(slug)),
                name=self._name(slug),
            )
            for slugs, make in ((self.pages, self._page_view), (self.deeds, self._deed_view))
            for slug in slugs
            if slug != FIRST
        ]
        found += [
            path(
                f"<uuid:object_id>/{route}",
                self.admin_site.admin_view(view),
                name=self._name(name),
            )
            for route, view, name in self.routes
        ]
        return [*found, *super().get_urls()]

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Show the object's first page."""
        return self._page_view(FIRST)(request, object_id=object_id)

    def tabs(self, visit: ObjectRequest) -> list[dict[str, Any]]:
        """Return the tabs that the user may open."""
        here = self.pages[visit.page].under if visit.page in self.pages else ""
        return [
            {
                "title": page.title,
                "url": visit.url(page.slug),
                "active": page.slug == (here or visit.page),
            }
            for page in sorted(self.pages.values(), key=lambda page: page.order)
            if page.title and any(map(visit.principal.may, page.needs))
        ]

    def find(self, request: HttpRequest, object_id: Any) -> Any:
        """Return the object of the active organization; raises `NotFound`."""
        found: Model | None = self.get_object(request, str(object_id))
        if found is None:
            raise NotFound(
                format_message(
                    "There is no {verbose_name} {object_id!r} here.",
                    verbose_name=self.opts.verbose_name,
                    object_id=str(object_id),
                ),
                remedy="Check the organization that you are working in.",
            )
        return found

    def _page_view(self, slug: str) -> Callable[..., HttpResponseBase]:
        def view(request: HttpRequest, object_id: Any) -> HttpResponseBase:
            page = self.pages[slug]
            principal = self.principal(request)
            # Look up first: missing objects are 404 for every role.
            found = self.find(request, object_id)
            if not any(map(principal.may, page.needs)):
                principal.require(page.needs[0])
            return page.view(ObjectRequest(request, principal, found, self, slug))

        return view

    def _deed_view(self, slug: str) -> Callable[..., HttpResponseBase]:
        def view(request: HttpRequest, object_id: Any) -> HttpResponseBase:
            if request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            deed = self.deeds[slug]
            principal = self.principal(request)
            found = self.find(request, object_id)
            principal.require(deed.needs)
            visit = ObjectRequest(request, principal, found, self, slug)
            return deed.do(visit) or redirect_back(request, visit.url())

        return view

    def _name(self, slug: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{slug}"


def redirect_to_page(visit: ObjectRequest, slug: str, query: str = "") -> HttpResponseRedirect:
    """Redirect to another page of the same object."""
    return HttpResponseRedirect(visit.url(slug) + query)
