"""Alembic's migrations of the tables of `data.tables`, step by step."""
