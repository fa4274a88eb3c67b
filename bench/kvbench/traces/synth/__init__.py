"""Make traces from recipes: the same recipe and seed, the same bytes."""
