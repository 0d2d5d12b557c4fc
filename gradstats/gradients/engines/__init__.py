"""The engines that compute per-sequence gradients, one file each, and the code that they share."""
