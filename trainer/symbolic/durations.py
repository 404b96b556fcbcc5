import re


def seconds(duration: str) -> int:
    """Parses a duration: '90s', '30m', '12h', '1d'.

    Raises:
        ValueError: it is not a duration.

    Example:
        >>> seconds('12h')
        43200
    """
    found = re.fullmatch(r'(\d+)([smhd])', duration)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"expected a duration such as '30m' or '12h', not {duration!r}")
    return int(found[1]) * {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}[found[2]]
