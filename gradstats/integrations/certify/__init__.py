"""What a trainer's advantage and loss functions estimate, exactly, on policies of which every completion is listed."""
