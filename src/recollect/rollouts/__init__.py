"""Groups of responses to one prompt: what they are, when they are stale, and where they wait."""
