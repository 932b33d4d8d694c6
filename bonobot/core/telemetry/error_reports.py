"""Traceback pages with secrets masked.

Django hides settings and form fields by name; this also masks the secrets decrypted in this process
and text that looks like credentials.
"""

from django.utils.safestring import SafeString
from django.views.debug import ExceptionReporter

from bonobot.core.text import masking


class MaskingExceptionReporter(ExceptionReporter):
    """Django's exception report, masked like logs."""

    def get_traceback_html(self) -> SafeString:
        return _mask_report(super().get_traceback_html())

    def get_traceback_text(self) -> SafeString:
        """Return the report as text, for emails and programs."""
        return _mask_report(super().get_traceback_text())


def _mask_report(report: str) -> SafeString:
    """Return an escaped report with secrets masked."""
    return SafeString(masking.get_process_masker().mask_text(report))
