"""Compares runs on one HTML page: python -m jaxfed.report WORKDIR ... --output=FILE.html."""
