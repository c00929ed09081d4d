"""A module of the programs: what one of its processes keeps in it, no other finds."""

who = "nobody"
count = 0
seen: list[int] = []
