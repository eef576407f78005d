"""Looking at rewards: two of them compared, and the start of a new one."""
