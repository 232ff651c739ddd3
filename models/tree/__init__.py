"""A tree: what it looks at, its arrays, its file, where it was trained, and what it says in words."""
