"""What is said about recipes and options, by topic."""
