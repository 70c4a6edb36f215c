"""What is minimised: divergences per token in nats, their fused form with the output head, and the one reducer."""
