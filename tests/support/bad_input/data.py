"""Prompts."""

from __future__ import annotations

from typing import Any

from support.bad_input.case import Arguments, case
from support.desk import Desk

GOOD_LINE = '{"prompt": "1+1=", "answer": 2}\n'
LONG = "1+" * 700


def file(name: str, content: str | bytes) -> Arguments:
    return lambda desk: desk.check(data=desk.write(name, content))


def rows(*rows: Any, **sections: Any) -> Arguments:
    return lambda desk: desk.check(**{"data": desk.rows(rows), **sections})


def option(source: str, **options: Any) -> Arguments:
    return lambda desk: desk.check(data={"source": source, "options": options})


def beside(name: str) -> Arguments:
    def arguments(desk: Desk) -> list[str]:
        desk.write(name, GOOD_LINE)
        return desk.check(data="data.jsonl")

    return arguments


def generator(body: str, reference: str = "my_data.py:rows") -> Arguments:
    def arguments(desk: Desk) -> list[str]:
        desk.write("my_data.py", body)
        return desk.check(data=reference)

    return arguments


CASES = [
    case(
        "number-too-long",
        file("d.jsonl", GOOD_LINE + '{"prompt": "1", "answer": ' + "9" * 5000 + "}"),
        "'d.jsonl' line 2 cannot be read",
        "4300 digits",
        "remove the line",
    ),
    case(
        "nested-too-deeply",
        file("d.jsonl", GOOD_LINE + "[" * 100_000 + "]" * 100_000),
        "'d.jsonl' line 2 cannot be read",
        "nested too deeply",
    ),
    case("array-too-deep", file("d.json", "[" * 100_000), "'d.json'", "nested too deeply"),
    case(
        "half-a-character",
        file("d.jsonl", '{"prompt": "1+1=\\ud800", "answer": 2}\n'),
        "row 1: character",
        "'\\ud800'",
        "remove the row",
    ),
    case(
        "column-without-a-text-for-a-name",
        generator("def rows():\n    yield {'prompt': '1+1=', 5: 1}\n"),
        "row 1 of 'my_data.py:rows'",
        "a column is called 5, a int",
    ),
    case(
        "generator-exits",
        generator("import sys\ndef rows():\n    sys.exit(3)\n"),
        "data.source = 'my_data.py:rows' raised SystemExit: 3 (my_data.py line 3)",
    ),
    case(
        "file-absent",
        lambda desk: desk.check(data="problems.jsonl"),
        "data.source = 'problems.jsonl': no such file in",
        "Relative paths start at the recipe's folder",
    ),
    case("file-misspelt", beside("date.jsonl"), "no such file", "Did you mean 'date.jsonl'?"),
    case(
        "folder-absent",
        lambda desk: desk.check(data="files/problems.jsonl"),
        "data.source = 'files/problems.jsonl': there is no folder",
    ),
    case(
        "folder-named-like-a-file",
        lambda desk: (desk.write("data.jsonl/part", ""), desk.check(data="data.jsonl"))[-1],
        "data.source = 'data.jsonl'",
        "is a folder",
    ),
    case(
        "file-empty",
        file("data.jsonl", ""),
        "data.source = 'data.jsonl': holds no rows",
        "at least one",
    ),
    case(
        "extension-unknown",
        file("data.txt", "1+1=\n"),
        "data.source = 'data.txt'",
        ".jsonl, .json, .csv or .parquet",
        "ends in '.txt' is not read: convert it",
    ),
    case(
        "broken-line",
        file("data.jsonl", GOOD_LINE * 1206 + '{"prompt": "1+\n' + GOOD_LINE),
        "'data.jsonl' line 1,207 is not JSON",
        "mend or remove the line",
    ),
    case(
        "not-utf8",
        file("data.jsonl", GOOD_LINE.encode() + '{"prompt": "é="}\n'.encode("latin-1")),
        "'data.jsonl' line 2 is not UTF-8: byte 0xe9",
        "Save the file as UTF-8",
    ),
    case(
        "json-lines-in-a-json-file",
        file("data.json", GOOD_LINE * 2),
        "'data.json' is not JSON",
        "a JSON object a line end in .jsonl",
    ),
    case(
        "json-object-instead-of-rows",
        file("data.json", GOOD_LINE),
        "'data.json' holds a JSON dict",
        "an array of rows",
    ),
    case(
        "csv-with-a-comma-too-many",
        file("data.csv", "prompt,answer\n1+1=,2\n1,2,3\n"),
        "'data.csv' line 3 has 3 fields and the header 2",
        "double quotes",
    ),
    case(
        "csv-names-a-column-twice",
        file("data.csv", "prompt,prompt\n1+1=,2\n"),
        "'data.csv' has two columns 'prompt'",
        "Rename one",
    ),
    case("not-parquet", file("data.parquet", b"PAR"), "'data.parquet' is not Parquet"),
    case(
        "row-without-names",
        file("data.jsonl", '["1+1=", 2]\n'),
        "row 1 of 'data.jsonl' is a list",
        "{'prompt': '1+1=', 'answer': '2'}",
    ),
    case(
        "no-prompt-column",
        rows({"promt": "1+1=", "answer": 2}),
        "row 1 has no column 'prompt'",
        "Did you mean 'promt'?",
        "Set data.prompt_column",
    ),
    case(
        "prompt-column-called-otherwise",
        rows({"question": "1+1=", "answer": 2}),
        "no column 'prompt'",
        "Known: answer, question",
    ),
    case(
        "column-named-like-an-argument",
        rows({"prompt": "1+1=", "answer": 2, "completions": "x"}),
        "a column 'completions'",
        "Rename it",
    ),
    case(
        "prompt-is-a-number",
        rows({"prompt": 3, "answer": 2}),
        "row 1: column 'prompt' is of type int",
        "text or a list of chat messages",
    ),
    case(
        "messages-of-another-format",
        rows({"prompt": [{"from": "human", "value": "1+1="}], "answer": 2}),
        "row 1: a chat message should have 'role' and 'content'",
        "'from': 'human'",
    ),
    case(
        "all-prompts-too-long",
        rows(*[{"prompt": LONG, "answer": 1}] * 9),
        "all 9 prompts are longer than 1,016 tokens",
        "data.overlong = 'truncate'",
    ),
    case(
        "a-prompt-too-long",
        lambda desk: desk.check(
            data={"source": desk.rows([{"prompt": LONG, "answer": 1}]), "overlong": "error"}
        ),
        "row 1: the prompt has",
        "1,016 fit",
        "data.overlong",
    ),
    case(
        "all-rows-held-out",
        lambda desk: desk.check(data=desk.rows(desk.problems(5)), eval={"prompts": 64}),
        "only 0 prompts are left to train on",
        "held out by eval.prompts = 64",
        "Lower data.prompts_per_step or eval.prompts",
    ),
    case(
        "all-rows-alike",
        rows(*[{"prompt": "1+1=", "answer": 2}] * 9),
        "only 0 prompts are left to train on",
        "7 are the same as a held-out prompt",
    ),
    case(
        "fewer-rows-than-a-step-takes",
        lambda desk: desk.check(
            data={"source": desk.rows(desk.problems(9)), "prompts_per_step": 32}
        ),
        "data.prompts_per_step = 32: only 7 prompts are left",
    ),
    case(
        "task-misspelt",
        lambda desk: desk.check(data="reasoning_gym:chain_sums"),
        "data.source = 'reasoning_gym:chain_sums': no such task",
        "Did you mean 'chain_sum'?",
    ),
    case(
        "task-option-misspelt",
        option("reasoning_gym:chain_sum", min_term=2),
        "data.options: reasoning_gym:chain_sum has no option 'min_term'",
        "Did you mean 'min_terms'?",
    ),
    case(
        "task-options-contradict",
        option("reasoning_gym:chain_sum", min_terms=9, max_terms=2),
        "data.options = {'min_terms': 9, 'max_terms': 2}",
        "max_terms must be >= min_terms",
    ),
    case(
        "built-in-misspelt",
        lambda desk: desk.check(data="arithmetics"),
        "data.source = 'arithmetics'",
        "Did you mean 'arithmetic'?",
    ),
    case(
        "hub-id-offline",
        lambda desk: desk.check(data="nobody/nothing"),
        "data.source = 'nobody/nothing'",
        "Check the id, data.split and the network",
    ),
    case(
        "generator-not-there",
        generator("def rows():\n    yield {}\n", "my_data.py:row"),
        "data.source = 'my_data.py:row': 'my_data.py' has no 'row'",
        "Did you mean 'rows'?",
    ),
    case(
        "generator-without-a-name",
        generator("def rows():\n    yield {}\n", "my_data.py"),
        "data.source = 'my_data.py'",
        "'my_data.py:function'",
    ),
    case(
        "generator-raises",
        generator("def rows():\n    yield {'prompt': '1', 'answer': 1}\n    1 / 0\n"),
        "ZeroDivisionError: division by zero (my_data.py line 3) after 1 rows",
    ),
    case(
        "template-absent",
        lambda desk: desk.check(data={"chat_template": "chat.jinja"}),
        "data.chat_template = 'chat.jinja': no such file",
    ),
    case(
        "template-broken",
        lambda desk: desk.check(data={"chat_template": "{% for m in messages %}"}),
        "data.chat_template is not valid Jinja, in its line 1",
    ),
    case(
        "held-out-file-absent",
        lambda desk: desk.check(eval={"source": "held.jsonl"}),
        "eval.source = 'held.jsonl': no such file",
    ),
]
