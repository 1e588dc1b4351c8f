"""EAGLE: a head that drafts from the target's own features, as chains and as trees (EAGLE-2)."""
