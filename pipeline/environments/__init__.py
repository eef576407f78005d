"""Environments: what a policy acts in over several turns; plug-ins, and the two that are built in."""
