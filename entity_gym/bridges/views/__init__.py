"""Entity views: the entities that a flat observation holds, written down in YAML or Python."""
