"""``dist-mp config``: what can be set, and what a configuration file comes to."""

from __future__ import annotations

from typing import Annotated

import typer

from dist_mp.cli.arguments import ConfigArgument, OverridesArgument


def make_app() -> typer.Typer:
    """The commands below ``dist-mp config``."""
    app = typer.Typer(help="Show settings and configurations.", rich_markup_mode=None)
    app.callback(invoke_without_command=True)(print_help)
    app.command("show")(show)
    app.command("fields")(fields)
    app.command("list")(bundled)
    return app


def print_help(context: typer.Context) -> None:
    """Print the help of a group of commands that was called without one."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def show(configuration: ConfigArgument, overrides: OverridesArgument = None) -> None:
    """Print a configuration with every default and override filled in, as YAML that can be run again."""
    from dist_mp import settings

    print(settings.dump(settings.load(configuration, overrides or [])), end="")


def fields(
    section: Annotated[str, typer.Argument(metavar="[SECTION]", help="Only this section, for example optimizer.")] = "",
) -> None:
    """List every setting with its type, default, unit and meaning."""
    from dist_mp import settings
    from dist_mp.errors import UserError

    rows = settings.field_rows()
    chosen = [row for row in rows if not section or row.path == section or row.path.startswith(f"{section}.")]
    if not chosen:
        sections = sorted({row.section for row in rows if row.section})
        raise UserError(f"config fields: no section {section!r}; there are {', '.join(sections)}")
    for row in chosen:
        only = f"; only where {row.path.split('.')[0]}.kind is {row.kind}" if row.kind else ""
        print(f"{row.path}: {settings.scalar_text(row.default)}\n    {row.type}{only}\n    {row.description}")


def bundled() -> None:
    """List the configurations that come with dist_mp."""
    from dist_mp import settings

    for name, path in settings.bundled_configs().items():
        head = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        print(f"{name:<12} {head}")
