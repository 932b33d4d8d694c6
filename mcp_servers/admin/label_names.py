"""What the labels of definitions say to people."""

from django.utils.translation import gettext_lazy as _

from mcp_servers.labels import Label

WORDS = {
    Label.PRIVATE_DATA: _("reads private data"),
    Label.UNTRUSTED_CONTENT: _("brings in text that anybody may have written"),
    Label.SENDS_OUT: _("can send something out"),
    Label.REPEATABLE: _("may be repeated: a second call does no more than the first"),
}
