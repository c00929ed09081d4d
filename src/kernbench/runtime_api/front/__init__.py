"""What a bench uses as ``torch``: the context, ranks, groups, factories."""
