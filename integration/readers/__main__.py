"""The second reader, as the kit asks it."""

from integration.readers.commit_log import DamageError, NewerError, NoShuffleError
from integration.readers.rows import read
from integration.readers.serve import serve

serve(
    read,
    {
        DamageError: "damage",
        FileNotFoundError: "damage",
        NewerError: "newer",
        NoShuffleError: "absent",
    },
)
