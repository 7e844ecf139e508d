"""The plan played forward under a virtual clock."""
