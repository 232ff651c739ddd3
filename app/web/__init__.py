"""The web page, rendered on the server: no third-party scripts from elsewhere, no build step."""
