"""Stages that make records: the prompt producer and the rollout producers."""
