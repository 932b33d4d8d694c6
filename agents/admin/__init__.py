"""The admin site and the admin of agents; importing `pages` registers models, pages and actions."""
