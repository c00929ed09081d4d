"""What a bench sees as ``torch``: the context, ranks, groups, factories."""
