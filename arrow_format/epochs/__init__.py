"""Epochs of training: every row once, mixed, on any number of readers, and resumed on any other."""
