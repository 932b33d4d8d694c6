"""Traceback pages with secrets masked.

Django hides settings and form fields by their names; here what the process has opened is hidden
wherever it stands, and what looks like a credential.
"""

from django.utils.safestring import SafeString
from django.views.debug import ExceptionReporter

from bonobot.core.text import masking


class MaskingExceptionReporter(ExceptionReporter):
    """Django's report of an exception, masked as logs are."""

    def get_traceback_html(self) -> SafeString:
        """Return the page."""
        return _mask_report(super().get_traceback_html())

    def get_traceback_text(self) -> SafeString:
        """Return the same as text, for mails and programs."""
        return _mask_report(super().get_traceback_text())


def _mask_report(report: str) -> SafeString:
    """Return a report, escaped as Django wrote it, without secrets."""
    return SafeString(masking.get_process_masker().text(report))
