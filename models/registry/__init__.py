"""The trained trees of every device: on disk, and in a database that several servers share."""
