"""One module a dialect: how requests are built and what answers mean."""
