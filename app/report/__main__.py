"""`python -m app.report`: reads about reports. `explain CHECK_ID` says what a check is about."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from app.catalogue import Entry, entries, find, near
from app.exits import ACTIONS, ExitCode

cli = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, help=__doc__
)


@cli.callback()
def _several() -> None:
    """Keep `explain` a command of its own; typer runs a single one without its name."""


@cli.command()
def explain(
    check_id: Annotated[str, typer.Argument(help="As in the report, for instance gpu.count.")] = "",
) -> None:
    """Say what a check asks, what usually makes it fail and what to do; without an id, list all."""
    if not check_id:
        for entry in entries():
            typer.echo(f"{entry.id:<40} {entry.asks}")
        return
    found = find(check_id)
    if found is None:
        meant = near(check_id)
        hint = f"; did you mean {', '.join(meant)}?" if meant else ""
        typer.echo(f"there is no check {check_id!r}{hint}", err=True)
        raise typer.Exit(int(ExitCode.USAGE))
    typer.echo(told(found, check_id))


def told(entry: Entry, check_id: str) -> str:
    """The entry as text."""
    if entry.code is None:
        code = "0: it fails no boot"
    else:
        action = ACTIONS[entry.code]
        code = (
            f"{int(entry.code)} {entry.code.name} ({action.meaning}; retry: {action.retry}), "
            "unless the finding names another"
        )
    return (
        f"{check_id}\n"
        f"  asks    {entry.asks}\n"
        f"  source  {entry.source}\n"
        f"  exit    {code}\n"
        f"  cause   {entry.cause}\n"
        f"  fix     {entry.fix}"
    )


if __name__ == "__main__":
    # The working folder is first on the path of `-m`; what lies there must not shadow a module.
    sys.exit(cli(prog_name="python -m app.report"))
