"""`python -m ops.cli`: the same as `rlweave`."""

from ops.cli.main import main

main()
