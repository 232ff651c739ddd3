"""Advice: from a question about a layer to the tree's answer."""
