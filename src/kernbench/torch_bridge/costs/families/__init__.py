"""Operations by how their time is found: a module for each family."""
