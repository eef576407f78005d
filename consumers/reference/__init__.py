"""The reference model: a frozen policy that says how likely it finds every sample."""
