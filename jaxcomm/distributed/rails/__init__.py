"""The rails between processes: their shares, outages and repair."""
