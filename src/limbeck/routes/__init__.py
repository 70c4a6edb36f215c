"""The ways to train, the step of each in a file of its own, and the loop that takes these steps (`loop`)."""
