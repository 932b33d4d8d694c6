"""Notices: what people elsewhere are told of by e-mail or webhook, written where it happens."""
