"""What every stage stands on: settings, the run loop, events, metrics, plug-ins, engines and weights."""
