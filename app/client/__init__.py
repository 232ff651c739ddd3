"""How a Python program asks a server: every request as a method, typed, tried again where that helps."""
