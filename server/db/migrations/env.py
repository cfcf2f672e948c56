"""Alembic environment: migrates on the connection of `server.db.migrations.upgrade`."""

from alembic import context

from server.db.schema import StudyRow

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("migrations run when the server starts: blindtally serve")
context.configure(connection=connection, target_metadata=StudyRow.metadata, render_as_batch=True)
context.run_migrations()
