"""One sentence for a hyper-parameter outside its range."""


def check(holds: bool, name: str, value: object, range_: str) -> None:
    """Raise a ValueError that names the hyper-parameter, its value and its range unless it holds.

    Args:
      holds: whether the value is in range.
      name: of the hyper-parameter.
      value: it was given.
      range_: in words, as it follows 'must be'.

    Raises:
      ValueError: if `holds` is false.
    """
    if not holds:
        raise ValueError(f'{name}={value} must be {range_}.')
