"""Texts that users write as options of Spark's readers and writers, to checked values."""
