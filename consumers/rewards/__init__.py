"""Reward consumers: each scores every sample with one plug-in, as a consumer group of its own."""
