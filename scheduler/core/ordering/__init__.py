"""Which pending job is considered next."""
