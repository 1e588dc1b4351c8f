"""Making drafters for a target: its own answers to prompts, then heads and small models trained on them."""
