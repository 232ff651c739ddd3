"""The migrations, one module each, named by revision."""
