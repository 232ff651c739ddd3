"""Alembic's migrations of the tables of `data.database.tables`, step by step."""
