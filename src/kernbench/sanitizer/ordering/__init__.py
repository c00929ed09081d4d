"""Who touched which bytes, and whether anything orders them."""
