"""The second reader, as the kit asks it."""

import struct

import pyarrow as pa
import zstandard

from integration.readers.arrow_frames import DamageError, NewerError
from integration.readers.commit_log import NoShuffleError
from integration.readers.rows import read
from integration.readers.serve import serve

# What Python and Arrow raise of bytes that are none of the format.
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OSError, struct.error)

serve(
    read,
    {
        NewerError: "newer",
        NoShuffleError: "absent",
        **dict.fromkeys(
            (DamageError, pa.ArrowException, zstandard.ZstdError, *MALFORMED), "damage"
        ),
    },
)
