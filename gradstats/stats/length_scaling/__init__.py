"""How the gradient grows with length: fits of ‖S‖² ∝ T^(2α), their intervals and diagnostics."""
