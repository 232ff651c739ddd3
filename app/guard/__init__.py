"""Who may ask for what: tokens and their scopes, rates, and the names that the service answers to."""
