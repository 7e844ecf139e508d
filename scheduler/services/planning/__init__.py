"""Planning cycles, previews and forecasts."""
