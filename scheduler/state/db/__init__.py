"""SQL statements as text with named parts."""
