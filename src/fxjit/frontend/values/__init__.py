"""Symbolic values; families.py imports all of them."""
