"""Built-in tools, under the same policy, audit and limits as tools of servers."""
