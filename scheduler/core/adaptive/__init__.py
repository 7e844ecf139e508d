"""Rules by which a profile chooses its order, placement and weights: as values, and read from what is written."""
