"""One module per trace dialect: bytes to columns."""
