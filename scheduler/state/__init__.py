"""The only bridge between rows and the core."""
