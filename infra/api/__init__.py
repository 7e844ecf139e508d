"""How every API of the portal reads input, pages and answers errors."""
