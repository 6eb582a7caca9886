"""From recorded runs to the numbers of a picture, and from these to the picture."""
