"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG", help="A YAML file, or the name of a bundled one (dist-mp config list).", show_default=False
    ),
]
TimelineOption = Annotated[
    bool, typer.Option("--timeline", help="Write a Chrome trace of each rank's steps (the same as timeline=true).")
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings that replace those of the file, for example train.epochs=3 (dist-mp config fields).",
        show_default=False,
    ),
]
OutputFolderOption = Annotated[
    Path, typer.Option("--output-folder", metavar="DIR", help="Submitted jobs have their folders in here.")
]
