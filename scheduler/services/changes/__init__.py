"""Changes of submitted jobs: of one in place, of all elements of an array, of many by a filter."""
