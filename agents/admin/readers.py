"""Who sees what agents have and do: readers of the organization, and members who run agents."""

from bonobot.tenancy.roles import Action

# Members see only what is theirs: `visible_to` of each model says what that is.
READERS = (Action.RUN_AGENTS, Action.VIEW)
