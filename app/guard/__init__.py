"""Access control: tokens and scopes, rate limits, and the host names that the service answers to."""
