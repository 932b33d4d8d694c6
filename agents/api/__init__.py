"""REST of agents: what they are, which servers they have, what they may, and what they do."""
