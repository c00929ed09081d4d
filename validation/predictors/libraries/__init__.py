"""What of vendors' libraries the rows of each category launch."""
