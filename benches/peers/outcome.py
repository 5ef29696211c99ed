"""How a check ends that does not end well."""


class Wrong(Exception):
    """What was seen instead."""


class NotApplicable(Exception):
    """Why there is nothing to check."""
