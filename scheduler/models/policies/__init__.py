"""Versions of scheduler profiles, and drafts of profiles that are planned beside the profile in force."""
