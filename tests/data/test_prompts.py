from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roost.config.loading import build_config
from roost.data.prompts import PromptSets, load_prompts
from roost.errors import DataError
from support.small_tokenizers import character_tokenizer


def load(
    rows: list[dict[str, Any]], template: bool = True, context: int = 64, **sections: Any
) -> PromptSets:
    sections = {"rollout": {"max_completion_tokens": 8}, "eval": {"prompts": 0}, **sections}
    sections["data"] = {"prompts_per_step": 1, **sections.get("data", {})}
    tokenizer = character_tokenizer() if template else character_tokenizer(None)
    return load_prompts(build_config(sections), tokenizer, context_length=context, source=rows)


def text_of(sets: PromptSets, index: int = 0) -> str:
    return character_tokenizer().decode(sets.train[index].token_ids)


def test_text_becomes_a_user_message_with_one_beginning() -> None:
    assert text_of(load([{"prompt": "1+1"}])) == "<s>U:1+1\nA:"


def test_text_without_a_template_gets_the_tokenizers_own_beginning() -> None:
    assert text_of(load([{"prompt": "1+1"}], template=False)) == "<s>1+1"
    assert text_of(load([{"prompt": "1+1"}], data={"chat": "never"})) == "<s>1+1"


def test_messages_system_prompt_and_template_options() -> None:
    sets = load(
        [{"prompt": [{"role": "user", "content": "hi"}]}],
        data={"system_prompt": "be", "template_options": {"note": "!"}},
    )
    assert text_of(sets) == "<s>S:be\nU:hi\nA:!"


def test_a_template_given_in_the_recipe() -> None:
    sets = load(
        [{"prompt": "x"}], template=False, data={"chat_template": "{{messages[0].content}}"}
    )
    assert text_of(sets) == "x"


def test_columns_and_content_go_along() -> None:
    prompt = load([{"prompt": "x", "answer": 3}]).train[0]
    assert prompt.content == "x"
    assert prompt.columns == {"answer": 3}
    assert prompt.id == 0


def test_long_prompts_are_dropped_with_a_count() -> None:
    sets = load([{"prompt": "x"}, {"prompt": "y" * 80}])
    assert [p.id for p in sets.train] == [0]
    assert sets.report.dropped == 1
    assert any("1 left out: longer than 56 tokens" in line for line in sets.report.losses())


def test_long_prompts_are_truncated_to_their_end_by_choice() -> None:
    sets = load([{"prompt": "y" * 80 + "end"}], data={"overlong": "truncate"})
    assert len(sets.train[0].token_ids) == 56
    assert text_of(sets).endswith("end\nA:")
    assert sets.report.truncated == 1


def test_long_prompts_stop_by_choice() -> None:
    with pytest.raises(DataError, match=r"row 2: the prompt has \d+ tokens and 56 fit"):
        load([{"prompt": "x"}, {"prompt": "y" * 80}], data={"overlong": "error"})


def test_a_prompt_at_the_limit_stays() -> None:
    exact = 64 - 8 - len("<s>U:\nA:") + 2
    assert load([{"prompt": "y" * exact}]).report.dropped == 0
    with pytest.raises(DataError, match="all 1 prompts are longer than 56 tokens, the shortest 57"):
        load([{"prompt": "y" * (exact + 1)}])


@pytest.mark.parametrize(
    ("rows", "sections", "message"),
    [
        ([{"prompts_": "x"}], {}, r"row 1 has no column 'prompt' .*Did you mean 'prompts_'"),
        ([{"prompt": "x", "completions": 1}], {}, r"a column 'completions', which is a name"),
        ([{"prompt": 3}], {}, r"row 1: column 'prompt' is of type int"),
        ([{"prompt": []}], {}, r"row 1: column 'prompt' is of type list"),
        ([{"prompt": [{"role": "user"}]}], {}, r"should have 'role' and 'content'"),
        ([{"prompt": "x"}], {"data": {"prompts_per_step": 2}}, r"only 1 prompts are left"),
        (
            [{"prompt": "x"}],
            {"eval": {"prompts": 1}},
            r"only 0 prompts are left to train on \(1 are held out by eval\.prompts = 1\)\. Lower",
        ),
        (
            [{"prompt": "x"}],
            {"rollout": {"max_completion_tokens": 64}},
            r"max_completion_tokens = 64: the model's context is 64 tokens",
        ),
        (
            [{"prompt": "x"}],
            {"data": {"max_prompt_tokens": 60}},
            r"max_prompt_tokens = 60 and rollout\.max_completion_tokens = 8 exceed",
        ),
    ],
)
def test_each_mistake_is_said(rows: Any, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(rows, **sections)


def test_messages_without_a_template() -> None:
    rows = [{"prompt": [{"role": "user", "content": "x"}]}]
    with pytest.raises(DataError, match=r"row 1 holds chat messages .* no chat template"):
        load(rows, template=False)
    with pytest.raises(DataError, match="'always'"):
        load([{"prompt": "x"}], template=False, data={"chat": "always"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chat_template": "{% for m in messages %}"}, r"^data\.chat_template is not valid Jinja"),
        ({"chat_template": "chat.jinja"}, r"'chat\.jinja': no such file in .*no Jinja template"),
        ({"template_options": {"tokenize": True}}, r"'tokenize' is set by Roost"),
    ],
)
def test_a_template_that_cannot_be_used(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load([{"prompt": "x"}], data=settings)


def test_a_broken_template_of_the_tokenizer() -> None:
    with pytest.raises(DataError, match=r"^the tokenizer's chat template is not valid Jinja"):
        load_prompts(
            build_config({}),
            character_tokenizer("{{"),
            context_length=999,
            source=[{"prompt": "x"}],
        )


def test_a_template_in_a_file_beside_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("<{{ messages[0].content }}>")
    config = build_config(
        {
            "data": {"chat_template": "chat.jinja", "prompts_per_step": 1},
            "eval": {"prompts": 0},
            "rollout": {"max_completion_tokens": 8},
        }
    )
    sets = load_prompts(
        config,
        character_tokenizer(),
        context_length=64,
        base_dir=tmp_path,
        source=[{"prompt": "x"}],
    )
    assert text_of(sets) == "<x>"


def test_a_template_that_refuses() -> None:
    template = "{{ raise_exception('no system role') }}"
    with pytest.raises(DataError, match="row 1: the chat template refuses .*no system role"):
        load([{"prompt": "x"}], data={"chat_template": template})


def test_a_prompt_without_tokens() -> None:
    with pytest.raises(DataError, match="has no tokens"):
        load([{"prompt": "x"}], data={"chat_template": "{{ '' }}"})


def test_held_out_prompts_are_never_trained_on() -> None:
    rows = [{"prompt": str(i % 15)} for i in range(20)]
    sets = load(rows, eval={"prompts": 5})
    held = {p.token_ids for p in sets.held_out}
    assert len(sets.held_out) == 5
    assert not held & {p.token_ids for p in sets.train}
    assert len(sets.train) + sets.report.repeated == 15
    again = load(rows, eval={"prompts": 5})
    assert [p.id for p in again.held_out] == [p.id for p in sets.held_out]


def test_held_out_prompts_from_their_own_source(tmp_path: Any) -> None:
    (tmp_path / "e.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    sets = load(
        [{"prompt": "a"}, {"prompt": "c"}],
        eval={"source": str(tmp_path / "e.jsonl"), "prompts": 2},
    )
    assert [p.content for p in sets.held_out] == ["a", "b"]
    assert [p.content for p in sets.train] == ["c"]
    assert len({p.id for p in [*sets.train, *sets.held_out]}) == 3


def test_prompts_that_are_only_evaluated_need_not_fill_a_step() -> None:
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    config = build_config({"eval": {"prompts": 64}, "rollout": {"max_completion_tokens": 8}})
    tokenizer = character_tokenizer()
    sets = load_prompts(config, tokenizer, context_length=64, source=rows, training=False)
    assert [p.content for p in sets.held_out] == ["a", "b"]
    with pytest.raises(DataError, match="only 0 prompts are left to train on"):
        load_prompts(config, tokenizer, context_length=64, source=rows)


def test_a_held_out_source_is_blamed_by_its_own_name() -> None:
    with pytest.raises(DataError, match=r"^eval\.source = 'no\.jsonl'"):
        load([{"prompt": "a"}], eval={"source": "no.jsonl", "prompts": 2})


def test_every_row_of_both_sources_is_tracked(tmp_path: Path) -> None:
    held_out = tmp_path / "held.jsonl"
    held_out.write_text('{"prompt": "3+3"}\n')
    seen: list[list[Any]] = []

    def track(rows: Any) -> Any:
        seen.append([])
        for row in rows:
            seen[-1].append(row["prompt"])
            yield row

    load_prompts(
        build_config(
            {
                "data": {"prompts_per_step": 1},
                "rollout": {"max_completion_tokens": 8},
                "eval": {"source": str(held_out), "prompts": 1},
            }
        ),
        character_tokenizer(),
        context_length=64,
        source=[{"prompt": "1+1"}, {"prompt": "2+2"}],
        track=track,
    )
    assert seen == [["1+1", "2+2"], ["3+3"]]
