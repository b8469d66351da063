"""Tables in files: CSV, or Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import importlib
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from dist_mp.errors import UserError

Columns = Mapping[str, Sequence[Any]]
"""Values by name of the column; all of one length. None is an empty cell."""

FORMATS = (".csv", ".parquet")


def check_table_path(path: Path, force: bool = False) -> None:
    """Refuse a table that could not be written later: before hours of work, not after them.

    Raises:
        UserError: another ending, no such folder, a file that is there already (unless `force`), or no pyarrow.
    """
    if path.suffix not in FORMATS:
        raise UserError(f"{path}: ends in {path.suffix or 'nothing'}; a table is a .csv or a .parquet file")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}")
    if path.is_dir() or (path.exists() and not force):
        raise UserError(f"{path}: exists already; name another file, or write over it with --force")
    if path.suffix == ".parquet":
        _pyarrow(path)


def _pyarrow(path: Path) -> Any:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UserError(
            f"{path}: Parquet needs the package pyarrow: pip install 'dist-mp[parquet]', or name a .csv file"
        ) from error


def write_table(path: Path, columns: Columns) -> None:
    """Write a table whole or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    partial = Path(name)
    try:
        if path.suffix == ".parquet":
            arrow, parquet = _pyarrow(path)
            parquet.write_table(arrow.table({name: arrow.array(values) for name, values in columns.items()}), partial)
        else:
            with partial.open("w", encoding="utf-8", newline="") as file:
                write_csv(file, columns)
        partial.chmod(0o644)
        os.replace(partial, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def write_csv(file: IO[str], columns: Columns) -> None:
    """Write a header and a line a row; None and NaN are empty, truth is 1 and 0, floats are exact."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([_cell(value) for value in row])


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return int(value) if isinstance(value, bool) else value
