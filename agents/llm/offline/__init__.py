"""The offline model: it runs typed commands and selects tools by rules, without a network."""

from agents.llm.offline.model import OfflineModel

__all__ = ["OfflineModel"]
