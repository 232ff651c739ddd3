"""What Alembic runs to migrate: on the connection that `schema` holds, or on the URL of ``alembic -x url=...``."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from conv_advisor.data.database.opening import open_engine
from conv_advisor.data.database.tables import METADATA


def migrate(connection: Connection) -> None:
    """Run the migrations that the connection's database lacks, or compare it with `data.database.tables`."""
    context.configure(connection=connection, target_metadata=METADATA, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


if hasattr(context, "config"):  # Alembic runs this file; importing it does nothing
    held = context.config.attributes.get("connection")
    if held is not None:
        migrate(held)
    else:
        with open_engine(context.get_x_argument(as_dictionary=True)["url"]).connect() as connection:
            migrate(connection)
