"""Runs the migrations on the connection that `server.migrations.upgrade` hands over."""

from alembic import context

from server.schema import Table

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("migrations run when the server starts: blindtally serve")
context.configure(connection=connection, target_metadata=Table.metadata, render_as_batch=True)
context.run_migrations()
