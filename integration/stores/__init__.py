"""What takes long on object stores: whole lives, many appends, kills. A night runs it."""
