"""What a run, a usage file, a log or a trace costs: requests to be billed, and one fold over them."""
