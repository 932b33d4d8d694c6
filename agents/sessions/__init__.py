"""Sessions: the agent loop, its model turns and tool calls, each recorded as a step."""
