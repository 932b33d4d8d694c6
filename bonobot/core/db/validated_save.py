"""Validate and save a row, converting errors to problems."""

from django.core.exceptions import ValidationError
from django.db import IntegrityError, models

from bonobot.core.problems import Conflict, InvalidInput


def save_validated(row: models.Model) -> None:
    """Validate and save; raises `Conflict` (`name_taken`) or `InvalidInput` with the field."""
    try:
        row.full_clean()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        is_name_taken = (
            "unique" in {e.code for e in error.error_dict.get(field, [])} or field == "__all__"
        )
        problem = Conflict if is_name_taken else InvalidInput
        raise problem(
            f"{messages[0]}",
            code="name_taken" if is_name_taken else "invalid",
            field="name" if field == "__all__" else field,
            remedy="Change this field.",
        ) from None
    try:
        row.save()
    except IntegrityError:
        raise Conflict(
            "This name is already in use.",
            code="name_taken",
            field="name",
            remedy="Choose another name.",
        ) from None
