"""Name the axes of a tensor: tern_axes.arrange(x, "b n (h d) -> b h n d", h=8)."""


def parse(side):
    """Split one side of a pattern into groups of names."""
    groups, inside = [], None
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        if word == "(":
            inside = []
        elif word == ")":
            groups.append(inside)
            inside = None
        elif inside is not None:
            inside.append(word)
        else:
            groups.append([word])
    return groups


def arrange(x, pattern, **known):
    """Take axes apart, permute them and join them, as the pattern says."""
    left, right = (parse(side) for side in pattern.split("->"))
    sizes = dict(known)
    for group, size in zip(left, x.shape):
        open_name = None
        for name in group:
            if name in sizes:
                size = size // sizes[name]
            else:
                open_name = name
        if open_name is not None:
            sizes[open_name] = size
    flat_left = [name for group in left for name in group]
    flat_right = [name for group in right for name in group]
    x = x.reshape([sizes[name] for name in flat_left])
    x = x.permute([flat_left.index(name) for name in flat_right])
    shape = []
    for group in right:
        size = 1
        for name in group:
            size = size * sizes[name]
        shape.append(size)
    return x.reshape(shape)
