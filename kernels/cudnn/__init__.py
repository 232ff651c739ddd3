"""cuDNN's convolutions: the eight algorithms of its legacy API and the engines of its graph API."""
