"""The wire format: request bodies, tensors, answers, errors, callers."""
