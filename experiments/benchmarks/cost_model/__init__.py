"""A model of the time, memory and traffic of a round."""
