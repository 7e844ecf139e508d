"""Single submissions with tokens, those that arrive together in one transaction."""
