"""What another load or another pool would do, from what was fitted."""
