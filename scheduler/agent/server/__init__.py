"""How the agent finds its server, proves who it is, and sends what tasks print."""
