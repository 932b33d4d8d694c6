"""REST of the registry: the pool of servers, what they offer, approvals, presets, import."""
