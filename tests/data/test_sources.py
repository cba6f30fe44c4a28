from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roost.data.sources import read_rows
from roost.errors import DataError

ROWS = [{"prompt": "é?", "answer": "1"}, {"prompt": "b", "answer": "2"}]


def read(source: Any, **keywords: Any) -> list[dict[str, Any]]:
    return read_rows(source, **{"options": {}, **keywords})


def write_json_lines(path: Path) -> None:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n\n")


def write_csv(path: Path) -> None:
    path.write_text("prompt,answer\né?,1\nb,2\n")


WRITERS = {
    "a.jsonl": write_json_lines,
    "a.json": lambda path: path.write_text(json.dumps(ROWS)),
    "a.csv": write_csv,
    "a.parquet": lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_each_kind_of_file(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    assert read(str(tmp_path / name)) == ROWS
    assert read(name, base_dir=tmp_path, limit=1) == ROWS[:1]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "x"}\n' * 1206 + '{"prompt": \n')
    with pytest.raises(
        DataError, match=r"line 1,207 is not JSON: Expecting value at character 12\."
    ):
        read(str(path))


def test_a_line_that_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "x"}\n[1]\n')
    with pytest.raises(DataError, match=r"row 2 of .* is a list"):
        read(str(tmp_path / "a.jsonl"))


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"prompt": "x"}\n{"prompt": "\xff"}\n')
    with pytest.raises(DataError, match=r"line 2 is not UTF-8"):
        read(str(tmp_path / "a.jsonl"))
    (tmp_path / "a.csv").write_bytes(b"prompt\n\xff\n")
    with pytest.raises(DataError, match=r"a\.csv' is not UTF-8"):
        read(str(tmp_path / "a.csv"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "holds no rows"),
        ("a.json", "{", "is not JSON"),
        ("a.json", '{"prompt": 1}', "holds a JSON dict"),
        ("a.csv", 'prompt,answer\n"x,1\n', r"is not CSV: .*\(line 2\)"),
        ("a.csv", "prompt,answer\nx\n", "line 2 has 1 fields and the header 2"),
        ("a.parquet", "no", "is not Parquet"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read(str(tmp_path / name))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "train.jsonl")
    with pytest.raises(DataError, match=r"no such file .*Did you mean 'train\.jsonl'"):
        read("trian.jsonl", base_dir=tmp_path)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("arithmetics", r"Did you mean 'arithmetic'\?"),
        ("./folder", "$"),
        ("data.txt", "$"),
        ("texts/a.txt", r"ends in '\.txt' is not read: convert it"),
        ("gen.py", r"'gen\.py:function'"),
    ],
)
def test_a_name_of_no_kind(tmp_path: Path, source: str, hint: str) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("x")
    with pytest.raises(DataError, match=f"is none of.*'owner/name'\\..*{hint}"):
        read(source, base_dir=tmp_path)


def test_a_file_takes_no_options(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match=r"data\.options = \{'size': 3\}.*takes none"):
        read("a.jsonl", base_dir=tmp_path, options={"size": 3})


def test_what_spreadsheets_write(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfprompt,answer\r\n"1,2",3\r\n\r\n')
    assert read("a.csv", base_dir=tmp_path) == [{"prompt": "1,2", "answer": "3"}]
    (tmp_path / "B.JSONL").write_bytes(b'\xef\xbb\xbf{"prompt": "x"}\n')
    assert read("B.JSONL", base_dir=tmp_path) == [{"prompt": "x"}]


def test_a_hub_id_offline() -> None:
    with pytest.raises(DataError, match="the hub gave no such dataset"):
        read("nobody/nothing")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Datasets finds ``owner/name`` in the working folder before it asks a hub; Roost looks beside
    the recipe, which is elsewhere. What it loads is kept in the test's own cache."""
    folder = tmp_path / "hub" / "owner" / "name"
    folder.mkdir(parents=True)
    write_json_lines(folder / "train.jsonl")
    monkeypatch.chdir(tmp_path / "hub")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


def test_a_hub_id(hub: Path) -> None:
    assert read("owner/name", base_dir=hub) == ROWS
    assert read("owner/name", base_dir=hub, limit=1) == ROWS[:1]
    assert read("owner/name", base_dir=hub, split="train[1:]") == ROWS[1:]
    assert read("owner/name", base_dir=hub, options={"name": "default"}) == ROWS
    assert read("owner/name", base_dir=hub, options={"streaming": True}) == ROWS


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"split": "test"}, 'Unknown split "test"'),
        ({"split": "train["}, "Check the id, data.split"),
        ({"options": {"name": "other"}}, "'other' not found"),
        ({"options": {"split": "train"}}, "data.options: 'split' is set by data.split"),
        ({"options": {"path": "other"}}, "data.options: 'path' is set by data.source"),
        ({"options": {"name": 5, "data_files": 7}}, "the hub gave no such dataset"),
    ],
)
def test_a_hub_id_asked_wrongly(hub: Path, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read("owner/name", base_dir=hub, **keywords)


def test_a_hub_dataset_that_cannot_be_read(hub: Path) -> None:
    (hub / "hub/owner/name/train.jsonl").write_text('{"prompt": "a"}\nnot json\n')
    with pytest.raises(DataError, match="data.source = 'owner/name'"):
        read("owner/name", base_dir=hub)


def test_reasoning_gym_rows_carry_their_entry() -> None:
    rows = read("reasoning_gym:chain_sum", options={"size": 3, "seed": 5, "max_digits": 2})
    assert len(rows) == 3
    assert rows[0]["task"] == "chain_sum"
    assert rows[0]["entry"]["answer"] == rows[0]["answer"]
    assert rows == read("reasoning_gym:chain_sum", options={"size": 3, "seed": 5, "max_digits": 2})


def test_reasoning_gym_mistakes() -> None:
    with pytest.raises(DataError, match=r"no such task\. Did you mean 'chain_sum'"):
        read("reasoning_gym:chain_sums")
    with pytest.raises(DataError, match=r"no option 'min_term'\. Did you mean 'min_terms'"):
        read("reasoning_gym:chain_sum", options={"min_term": 3})
    with pytest.raises(DataError, match=r"data\.options = .*: max_terms must be >= min_terms"):
        read("reasoning_gym:chain_sum", options={"min_terms": 9, "max_terms": 2})


def test_a_generator_file(tmp_path: Path) -> None:
    (tmp_path / "gen.py").write_text(
        "def rows(start=0):\n    while True:\n        yield {'prompt': str(start)}\n"
        "        start += 1\n"
    )
    rows = read("gen.py:rows", base_dir=tmp_path, limit=3, options={"start": 5})
    assert [row["prompt"] for row in rows] == ["5", "6", "7"]
    with pytest.raises(DataError, match=r"has no 'row'\. Did you mean 'rows'"):
        read("gen.py:row", base_dir=tmp_path, limit=1)
    with pytest.raises(DataError, match=r"'begin': 1.*does not take them: .* takes \(start=0\)"):
        read("gen.py:rows", base_dir=tmp_path, limit=1, options={"begin": 1})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("yield {'prompt': 'a'}; {}['q']", r"raised KeyError: 'q' \(gen\.py line 2\) after 1 rows"),
        ("return 1 + 'a'", r"raised TypeError: .*\(gen\.py line 2\) after 0 rows"),
        ("import json; return json.loads('{')", r"raised JSONDecodeError: .*\(gen\.py line 2\)"),
        ("pass", "returned a NoneType; it should yield or return rows"),
        ("yield 'hello'", "row 1 of .* is a str, 'hello'; a mapping of columns is needed"),
    ],
)
def test_a_generator_that_misbehaves(tmp_path: Path, body: str, message: str) -> None:
    (tmp_path / "gen.py").write_text(f"def rows():\n    {body}\n")
    with pytest.raises(DataError, match=message):
        read("gen.py:rows", base_dir=tmp_path)


def test_a_file_that_does_not_import(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import json\nboom\n")
    with pytest.raises(DataError, match=r"does not import: NameError: .*\(bad\.py line 2\)"):
        read("bad.py:rows", base_dir=tmp_path)


def test_python_objects() -> None:
    def generator(count: int = 2) -> Iterator[dict[str, Any]]:
        yield from ROWS[:count]

    import datasets

    assert read(ROWS) == ROWS
    assert read(generator, options={"count": 1}) == ROWS[:1]
    assert read(datasets.Dataset.from_list(ROWS)) == ROWS
    with pytest.raises(DataError, match="data = int"):
        read(3)
