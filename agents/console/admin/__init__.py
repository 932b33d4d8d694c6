"""The admin site and the console's own pages."""
