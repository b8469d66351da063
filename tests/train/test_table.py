"""Tables as CSV and Parquet, whole or not at all."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pyarrow.parquet
import pytest

from dist_mp.errors import UserError
from dist_mp.train.table import check_table_path, write_csv, write_table

COLUMNS = {
    "name": ["a", 'b,"c"', "d\ne"],
    "whole": [1, 2, 2**40],
    "number": [0.1, math.nan, -1e-300],
    "truth": [True, False, True],
    "gap": [None, 2.5, None],
}


def test_csv_is_exact() -> None:
    out = io.StringIO()
    write_csv(out, COLUMNS)
    assert out.getvalue() == (
        'name,whole,number,truth,gap\na,1,0.1,1,\n"b,""c""",2,,0,2.5\n"d\ne",1099511627776,-1e-300,1,\n'
    )


def test_parquet_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_table(path, COLUMNS)
    found = pyarrow.parquet.read_table(path).to_pydict()
    assert found.keys() == COLUMNS.keys()
    for name in ("name", "whole", "truth", "gap"):
        assert found[name] == COLUMNS[name]
    assert found["number"][0] == 0.1 and math.isnan(found["number"][1])
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


def test_nothing_is_written_by_halves(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("old")
    with pytest.raises(ValueError, match="zip"):
        write_table(path, {"a": [1, 2], "b": [1]})
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]
    write_table(path, {"a": [1]})
    assert path.read_text() == "a\n1\n"


def test_what_cannot_be_written_is_told_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there.csv").write_text("")
    for name, message in {
        "t.xlsx": r"ends in .xlsx; a table is a .csv or a .parquet file",
        "table": "ends in nothing",
        "no/t.csv": "there is no folder",
        "there.csv": "exists already; name another file, or write over it with --force",
    }.items():
        with pytest.raises(UserError, match=message):
            check_table_path(tmp_path / name)
    check_table_path(tmp_path / "there.csv", force=True)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"needs the package pyarrow: pip install 'dist-mp\[parquet\]'"):
        check_table_path(tmp_path / "t.parquet")
    check_table_path(tmp_path / "t.csv")
