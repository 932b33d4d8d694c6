"""Model providers, one module for each; the registry loads them by name."""
