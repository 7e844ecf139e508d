"""Published logs and experiments replayed by the simulator, against the figures that were published of them."""
