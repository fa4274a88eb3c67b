"""A trace like another: measure one (sample), make a recipe of it (fit), say how close a result is (distance)."""
