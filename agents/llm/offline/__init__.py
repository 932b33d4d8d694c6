"""A model that needs no network and no key: it runs typed lines and picks tools by rules."""

from agents.llm.offline.model import OfflineModel

__all__ = ["OfflineModel"]
