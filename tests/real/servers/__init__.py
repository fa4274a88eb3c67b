"""Real inference servers for tests: installed outside the project, started on loopback, always ended."""
