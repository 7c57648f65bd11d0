"""The commit log: which versions a shuffle has, what each holds, who consumes it."""
