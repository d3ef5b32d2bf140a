"""Entity views: the entities that a flat observation holds, written down in YAML or Python."""

from entity_gym.bridges.views.view import EntityView, View, included_views, load_view, view_mapping

__all__ = ["EntityView", "View", "included_views", "load_view", "view_mapping"]
