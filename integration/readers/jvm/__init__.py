"""The reader in Java without Spark: a program that answers the kit by it."""
