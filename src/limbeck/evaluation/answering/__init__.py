"""Models answer the same prompts."""
