"""How people reach the advisor: HTTP, command line, and the workers behind them."""
