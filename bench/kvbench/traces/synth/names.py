"""Names of sub-agents."""


def letters(number: int) -> str:
    """a, b, ... z, aa, ab, ... for 0, 1, ..."""
    out = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        out = chr(ord("a") + digit) + out
    return out
