"""Steps and episodes: a ring of steps per environment, and everything that is drawn from it."""
