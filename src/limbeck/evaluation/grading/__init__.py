"""How good an answer is: graders and a judge."""
