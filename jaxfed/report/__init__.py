"""One HTML page that compares runs: python -m jaxfed.report WORKDIR ... --output=FILE.html."""
