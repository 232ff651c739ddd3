"""The database behind the store: its tables, how it is opened, upgraded and watched."""
