"""Rules and queries: frozen descriptions that decide and never wait."""
