"""Tables: one core that runs verbs, and the face that people call."""
