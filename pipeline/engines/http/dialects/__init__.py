"""What each kind of server is asked and how its answers are read."""
