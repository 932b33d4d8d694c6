"""Built-in tools: the same policy, audit and bounds as any server's tool."""
