"""Messages about models."""
