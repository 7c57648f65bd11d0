"""What takes long on object stores: whole lives, many appends, kills. ``make stores`` runs it."""
