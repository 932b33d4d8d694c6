"""Change notifications of servers: changed lists and updated resources."""
