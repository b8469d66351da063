"""A rank that ``dist-mp doctor`` starts: ``python -m dist_mp.doctor.rank FILE``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dist_mp.comm.abort import abort_on_exception
from dist_mp.comm.launcher import rank_and_size
from dist_mp.comm.world import World
from dist_mp.doctor.examination import Examination, look_around
from dist_mp.doctor.findings import Finding
from dist_mp.errors import UserError


def main(answer: Path) -> None:
    """Look around with the other ranks; the launcher's rank 0 writes the answer as JSON."""
    try:
        world = World.open()
    except UserError as error:
        place = rank_and_size(os.environ)
        if place is None or place[0] == 0:
            _write(answer, Examination([Finding("ranks", str(error), "problem", "use mpirun and library of one MPI")]))
        return
    abort_on_exception(world)
    with world:
        found = look_around(world)
    if found is not None:
        _write(answer, found)


def _write(path: Path, found: Examination) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(found.to_json(), encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
