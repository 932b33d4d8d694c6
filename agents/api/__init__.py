"""REST API of agents, their servers, policies and sessions."""
