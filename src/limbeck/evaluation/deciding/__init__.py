"""From grades to a verdict: statistics, comparison, result."""
