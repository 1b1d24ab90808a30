"""Sparse explanations of PyTorch models by pruned layer-wise relevance propagation."""
