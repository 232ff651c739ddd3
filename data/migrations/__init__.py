"""How the database came to have the tables of `data.tables`, step by step: Alembic's migrations."""
