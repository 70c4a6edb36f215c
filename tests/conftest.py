"""Puts this folder on the import path, so that every test can `from builders import ...`."""
