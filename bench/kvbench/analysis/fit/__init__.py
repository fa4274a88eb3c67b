"""What runs say of an endpoint's cache and speed: estimates with intervals, and refusals where they cannot tell."""
