"""What no app owns: database access, errors, notifications and the shape of the API. Imports no app."""
