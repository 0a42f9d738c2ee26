"""Where rows become durable: the port, its two implementations, keys, commit rules and group commit."""
