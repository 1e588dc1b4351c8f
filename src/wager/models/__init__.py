"""Models: finding one by name, and running one forward at a time over a cache that can be cropped."""

# Not lazily: a function that has its module's name must be bound after that module was imported, and this one
# imports torch only when it is called.
from wager.models.resolve import load, load_model, load_tokenizer, resolve

__all__ = ["load", "load_model", "load_tokenizer", "resolve"]
