"""People are notified of what happens to their jobs: in the portal, by mail, and by signed webhooks."""
