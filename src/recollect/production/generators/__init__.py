"""What generates: any OpenAI-compatible endpoint, a function, a Ray actor, several of them."""
