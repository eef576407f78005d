"""Inference engines behind one protocol (`base.Engine`): torch here and a scripted one for tests and the simulator."""
