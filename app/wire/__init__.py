"""What crosses the border: bodies, tensors, answers, errors, who asks."""
