"""Objectives: divergences per token in nats, their fused form with the output head, and the reduction to a loss."""
