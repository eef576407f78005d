"""The scheduler: signals in, a pure decision, commands out."""
