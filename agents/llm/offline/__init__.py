"""The offline model: it runs typed commands, and calls that a message clearly asks for."""

from agents.llm.offline.model import OfflineModel

__all__ = ["OfflineModel"]
