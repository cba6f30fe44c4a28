"""The description of every field."""

from __future__ import annotations

from roost.config.description import describe_fields


def test_every_field_is_described() -> None:
    fields = {field.name: field for field in describe_fields()}
    assert fields["train.learning_rate"].default == "1e-06"
    assert fields["rollout.generations"].type == "int"
    assert fields["rollout.cache_bytes"].default == "unset"
    assert fields["rewards.functions"].default == '["numeric"]'
    assert fields["rewards.functions[].weight"].default == "1.0"
    assert all(field.doc for field in fields.values())
