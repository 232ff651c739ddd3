"""Commands for the administrator of the database."""

from __future__ import annotations

import typer

from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.output import AsJson, print_json, print_table
from conv_advisor.data.errors import StoreError

database = typer.Typer(help="Show and upgrade the database schema.", no_args_is_help=True)


@database.command()
def revision(as_json: AsJson = False) -> None:
    """Show the schema's revision, and the one needed here.

    Nothing is changed.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from conv_advisor.data.database import schema
    from conv_advisor.data.database.opening import open_engine

    try:
        engine = open_engine(load_settings().store_url)
        current = schema.revision(engine)
    except (SQLAlchemyError, OSError) as error:
        raise StoreError(f"cannot read the store: {getattr(error, 'orig', None) or error}") from error
    engine.dispose()
    _show({"revision": current, "needed": schema.HEAD}, as_json)


@database.command()
def upgrade(as_json: AsJson = False) -> None:
    """Upgrade the database schema.

    Servers also do this when they start. Several may do so at once.
    """
    from conv_advisor.data.database import schema
    from conv_advisor.data.store import Store

    with Store(load_settings().store_url) as store:
        _show({"revision": schema.revision(store.engine), "needed": schema.HEAD}, as_json)


def _show(answer: dict[str, str | None], as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print_table(("", "revision"), [(name, value or "none") for name, value in answer.items()])
