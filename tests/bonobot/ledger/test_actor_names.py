"""Actors have a name in the reader's language on screens."""

import ast
from collections.abc import Iterator

from django.utils.translation import override

from bonobot.ledger.actor_names import SYSTEM_ACTOR_NAMES, get_actor_name
from tests.architecture.sources import product


def _find_system_actor_ids() -> Iterator[str]:
    """Yield the constant ids of system actors in the sources."""
    for source in product():
        for node in source.nodes:
            if not isinstance(node, ast.Call):
                continue
            values = {
                keyword.arg: keyword.value.value
                for keyword in node.keywords
                if isinstance(keyword.value, ast.Constant)
            }
            if values.get("kind") == "system" and "id" in values:
                yield str(values["id"])


def test_each_part_of_bonobot_that_acts_has_a_name() -> None:
    assert sorted(_find_system_actor_ids()) == sorted(SYSTEM_ACTOR_NAMES)


def test_a_part_of_bonobot_is_named_in_the_readers_language() -> None:
    assert get_actor_name("system", "health", "health check") == "Health check"
    with override("de"):
        assert get_actor_name("system", "connections", "connections") == "Verbindungsüberwachung"


def test_other_actors_have_their_own_name() -> None:
    assert get_actor_name("cli", "cli:ada", "cli:ada") == "ada"
    assert get_actor_name("user", "7", "health") == "health"
    assert get_actor_name("system", "7", "schedule nightly") == "schedule nightly"
    assert get_actor_name("token", "8", "") == "8"
