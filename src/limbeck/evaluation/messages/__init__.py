"""The messages of evaluations: verdicts and results, grades and judges, models and their answers."""
