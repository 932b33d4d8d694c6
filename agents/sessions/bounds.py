"""What one message may take: model turns and calls (DESIGN section 5). Pure."""

from agents.models import Agent
from agents.sessions.past import History
from bonobot.lib.problems import Problem
from bonobot.lib.sayings import say


class Bound(Problem):
    """A run came to one of its bounds: turns, calls or time per message."""

    code = "turns_exhausted"
    status = 422


def within_turns(agent: Agent, past: History) -> None:
    """Raise `Bound` where the model has had its turns."""
    if past.turns_since_message >= agent.max_turns:
        raise Bound(
            say(
                "The model took {turns_since_message} turns without an answer.",
                turns_since_message=past.turns_since_message,
            ),
            code="turns_exhausted",
            remedy="Ask for less at once, or raise the agent's turns per message.",
        )


def within_calls(agent: Agent, past: History, more: int) -> None:
    """Raise `Bound` where the model asks for more calls than it has left."""
    if past.calls_since_message + more > agent.max_calls:
        raise Bound(
            say("The model asked for more than {max_calls} calls.", max_calls=agent.max_calls),
            code="calls_exhausted",
            remedy="Ask for less at once, or raise the agent's calls per message.",
        )
