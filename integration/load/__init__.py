"""What takes minutes and shows that size and company change nothing: ``make load``."""
