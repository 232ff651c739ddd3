"""How well our kernels choose their cut: every promising one timed, the rule's regret, and its constants refitted."""
