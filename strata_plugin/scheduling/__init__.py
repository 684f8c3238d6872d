"""What the engine computes next: requests, budget, order. Pure Python without I/O or clock."""
