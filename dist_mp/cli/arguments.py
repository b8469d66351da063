"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dist_mp.errors import UserError

ConfigArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG", help="A YAML file, or the name of a bundled one (dist-mp config list).", show_default=False
    ),
]
OptionalConfigArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML file, or the name of a bundled one (dist-mp config list); with --resume by default the run's own.",
        show_default=False,
    ),
]
ResumeOption = Annotated[
    Path | None,
    typer.Option("--resume", metavar="RUN", help="Continue this run folder from its newest checkpoint."),
]
IntoOption = Annotated[
    Path | None,
    typer.Option(
        "--into",
        metavar="RUN",
        help="Use this run folder: begin there, or continue from its newest checkpoint (for jobs that are requeued).",
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


def configuration_of(
    configuration: str | None, overrides: list[str] | None, timeline: bool, resume: Path | None, into: Path | None
) -> tuple[str, list[str]]:
    """The configuration and the ``key=value`` words of a command, where a resumed run brings its own configuration.

    Raises:
        UserError: no configuration, both `resume` and `into`, or no such run.
    """
    words = [*(overrides or []), *(["timeline=true"] if timeline else [])]
    if resume is not None and into is not None:
        raise UserError("--resume and --into: give one of them")
    if configuration is not None and "=" in configuration and not Path(configuration).exists():
        words.insert(0, configuration)
        configuration = None
    if configuration is None and resume is not None:
        configuration = str(resume / "config.yaml")
        if not Path(configuration).is_file():
            raise UserError(f"--resume {resume}: is not a run folder: it has no config.yaml")
    if configuration is None:
        raise UserError("no configuration: name a YAML file or a bundled one (dist-mp config list)")
    return configuration, words
