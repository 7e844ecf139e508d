"""Fields of requests whose refusals say the way out."""

from __future__ import annotations

from typing import Any, NoReturn

from rest_framework import serializers


class ChoiceField(serializers.ChoiceField):
    """A choice whose refusal names the choices; DRF's says only that the value is none of them."""

    def fail(self, key: str, **words: Any) -> NoReturn:
        if key == "invalid_choice":
            choices = ", ".join(str(choice) for choice in self.choices if choice != "")
            message = f"'{words['input']}' is not a valid choice; there are: {choices}."
            raise serializers.ValidationError(message, code=key)
        super().fail(key, **words)
