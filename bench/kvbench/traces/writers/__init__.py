"""The formats that are written, and the way from any trace to them (convert.py)."""
