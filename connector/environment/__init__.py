"""What driver, executors and storage have, what is wrong with it, and what to do."""
