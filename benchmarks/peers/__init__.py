"""The same work given to other schedulers, in turns with Muster."""
