"""A folder or file that appears under its name only when it is complete."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dist_mp.errors import UserError


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` to write to, renamed to `out` at the end of the block and removed on any error.

    `out` must be absent or an empty folder. A killed process leaves the hidden folder behind, never half of `out`.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists already; name a new folder, nothing is written over what is there")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise UserError(f"{out}: cannot be made: {error.strerror}") from error
    try:
        yield partial
        partial.chmod(0o755)
        partial.rename(out)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
