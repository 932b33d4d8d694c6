"""The admin of agents: importing registers models, pages and deeds."""

from agents.admin import (
    agents,
    audit,
    belonging,
    bindings,
    chat,
    configuring,
    endpoints,
    past,
    policy,
    sessions,
    try_it,
)

__all__ = [
    "agents",
    "audit",
    "belonging",
    "bindings",
    "chat",
    "configuring",
    "endpoints",
    "past",
    "policy",
    "sessions",
    "try_it",
]
