"""The built-in tools, one module for each toolset."""
