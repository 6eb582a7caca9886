"""Everything worth knowing about jaxfed on one device."""
