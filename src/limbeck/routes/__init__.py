"""Training routes: the step of each in a file of its own, and the loop that takes the steps."""
