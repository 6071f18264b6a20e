"""Plans in words, tables and pictures."""
