"""Template tag of the active filters of a list."""

from django import template

from bonobot.accounts.filter_chips import list_filter_chips

register = template.Library()
register.simple_tag(list_filter_chips, name="filter_chips")
