"""Who: people, organizations, projects, tokens, what they may do, and who did what."""
