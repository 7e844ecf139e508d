"""Shadow runs: drafts of profiles that are planned on recorded cycles, beside the planner and without any effect."""
