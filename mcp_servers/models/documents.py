"""ApiDocument: the OpenAPI document that a server is made of, in a row of its own."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.tenancy.scoped import OrganizationModel
from mcp_servers.models.servers import Server


class ApiDocument(OrganizationModel):
    """The text of a document as it was given or fetched, at most 4 MiB; lists never read it.

    What is called is in the definitions that were approved: a change here changes no request.
    """

    server = models.OneToOneField(Server, on_delete=models.CASCADE, related_name="document")
    text = models.TextField()
    digest = models.CharField(max_length=64)
    etag = models.CharField(max_length=255, blank=True, default="")
    fetched_at = models.DateTimeField(_("fetched"))

    class Meta:
        verbose_name = _("OpenAPI document")
        verbose_name_plural = _("OpenAPI documents")

    def __str__(self) -> str:
        return f"document of {self.server_id}"
