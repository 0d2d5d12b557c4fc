"""How per-sequence gradients are computed: one file an engine, and the pieces they share."""
