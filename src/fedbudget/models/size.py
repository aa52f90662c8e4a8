"""The size of a GPT as text; apart from the model, so that a config is checked without torch."""


def parse_size(size: str) -> tuple[int, int]:
    """Layers and width.

    >>> parse_size("2x128")
    (2, 128)
    """
    layers, _, width = size.partition("x")
    digits = (layers + width).isascii() and layers.isdecimal() and width.isdecimal()
    if not (digits and int(layers) > 0 and int(width) > 0):
        raise ValueError(
            f"model.size = {size!r}: it must be layers x width, such as 2x128, 6x256 or 8x128"
        )
    return int(layers), int(width)
