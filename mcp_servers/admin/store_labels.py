"""The page with the labels of a server's data."""

from django.contrib import messages
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base import ObjectRequest, redirect_to_page
from bonobot.accounts.roles import Action
from bonobot.core.db.object_version import compute_version
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.flow_labels.effective_labels import LABEL_NAMES
from mcp_servers.flow_labels.store_labels import (
    clear_store_labels,
    list_written_labels,
    load_server_store,
)
from mcp_servers.models import Server


@ServerAdmin.add_page("data_labels", _("Data labels"), order=25)
def show_data_labels(visit: ObjectRequest) -> HttpResponseBase:
    """Show the labels of the server's data and the calls that added them."""
    server: Server = visit.object
    store = load_server_store(server)
    written_labels = [
        (entry, [LABEL_NAMES[label] for label in entry.labels])
        for entry in list_written_labels(server)
    ]
    return visit.render_tab(
        "servers/data_labels.html",
        server=server,
        labels=[LABEL_NAMES[label] for label in store.labels],
        written_at=store.written_at,
        labels_version=compute_version(store.version_parts),
        written_labels=written_labels,
        may_clear=visit.principal.may(Action.APPROVE_DEFINITIONS),
        may_audit=visit.principal.may(Action.VIEW_AUDIT),
    )


@ServerAdmin.add_object_action("clear_data_labels", required_actions=Action.APPROVE_DEFINITIONS)
def clear_data_labels(visit: ObjectRequest) -> HttpResponseBase | None:
    """Clear the labels of the server's data, unless data with labels was written meanwhile."""
    clear_store_labels(visit.principal, visit.object, version=read_labels_version(visit))
    messages.success(visit.request, _t("Data labels cleared. Effective immediately."))
    return redirect_to_page(visit, "data_labels")


def read_labels_version(visit: ObjectRequest) -> str | None:
    """Return the version of the page with the form to clear labels, None if it isn't sent."""
    return visit.request.POST.get("labels_version")
