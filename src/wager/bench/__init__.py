"""Measurements: what wager costs and what it brings."""
