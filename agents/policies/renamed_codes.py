"""Codes that were renamed after version 0.1.

The audit log is signed, so its entries keep the old codes, as do recordings and sessions.
"""

from collections.abc import Set

RENAMED_CODES = {
    "builtin_off": "builtin_disabled",
    "denied_by_binding": "denied_by_attachment",
    "not_bound": "not_attached",
    "not_ticked": "not_selected",
}


def add_old_codes(codes: Set[str]) -> frozenset[str]:
    """Return the codes and their old names."""
    return frozenset(codes) | {old for old, new in RENAMED_CODES.items() if new in codes}
