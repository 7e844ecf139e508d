"""Pages that change submitted jobs: the fields of one, all elements of an array."""
