"""Processes that write what others consume: the prompt producer and the rollout producers."""
