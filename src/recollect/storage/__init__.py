"""Where rows live, and what executes selectors and queries."""
