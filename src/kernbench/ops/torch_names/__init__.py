"""Operations by the names that torch has for them, and the tables that bind them."""
