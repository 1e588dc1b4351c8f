"""The transformers engine: one stream, the same text, faster."""
