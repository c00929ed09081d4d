"""Which operations and programs touched which bytes, and whether anything orders them."""
