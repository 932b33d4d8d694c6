"""Old names of fields are accepted in place of the new ones."""

import pytest
from rest_framework import serializers

from bonobot.core.api.serializers import StrictSerializer
from bonobot.core.renamed_fields import replace_renamed_fields


class ModelBody(StrictSerializer):
    image_input = serializers.BooleanField(required=False)
    name = serializers.CharField(required=False)


def validate(**data):
    body = ModelBody(data=data)
    body.is_valid(raise_exception=True)
    return body.validated_data


def test_an_old_name_is_accepted_when_the_body_has_the_new_field():
    assert validate(sees_images=True, name="a") == {"image_input": True, "name": "a"}


@pytest.mark.parametrize("data", [{"word": "x"}, {"sees_images": True, "image_input": False}])
def test_an_old_name_is_unknown_when_the_body_lacks_the_new_field_or_has_both(data):
    body = ModelBody(data=data)
    assert not body.is_valid()
    [errors] = body.errors.values()
    assert [error.code for error in errors] == ["unknown_field"]


def test_other_fields_and_their_order_are_kept_when_one_is_renamed():
    values = {"a": 1, "falls_over": 2, "b": 3}
    assert list(replace_renamed_fields(values, ("fallback_on",)).items()) == [
        ("a", 1),
        ("fallback_on", 2),
        ("b", 3),
    ]
