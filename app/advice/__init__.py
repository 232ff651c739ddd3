"""From a question to a tree's answer."""
