"""Errors that users may catch; all are a :class:`ShuffleError`."""

from arrow_format.errors import (
    ArithmeticOverflowError as ArithmeticOverflowError,
)
from arrow_format.errors import (
    BackPressureTimeoutError as BackPressureTimeoutError,
)
from arrow_format.errors import (
    ClosedError as ClosedError,
)
from arrow_format.errors import (
    CommitConflictError as CommitConflictError,
)
from arrow_format.errors import (
    ConsumerError as ConsumerError,
)
from arrow_format.errors import (
    CorruptShuffleError as CorruptShuffleError,
)
from arrow_format.errors import (
    DuplicateKeyError as DuplicateKeyError,
)
from arrow_format.errors import (
    FormatVersionError as FormatVersionError,
)
from arrow_format.errors import (
    MissingPackageError as MissingPackageError,
)
from arrow_format.errors import (
    OptionError as OptionError,
)
from arrow_format.errors import (
    OutOfDiskError as OutOfDiskError,
)
from arrow_format.errors import (
    ReadBufferTimeoutError as ReadBufferTimeoutError,
)
from arrow_format.errors import (
    RequestTimeoutError as RequestTimeoutError,
)
from arrow_format.errors import (
    ResultFailedError as ResultFailedError,
)
from arrow_format.errors import (
    ResultReleasedError as ResultReleasedError,
)
from arrow_format.errors import (
    SchemaError as SchemaError,
)
from arrow_format.errors import (
    ShuffleError as ShuffleError,
)
from arrow_format.errors import (
    ShuffleExistsError as ShuffleExistsError,
)
from arrow_format.errors import (
    ShuffleNotFoundError as ShuffleNotFoundError,
)
from arrow_format.errors import (
    ShuffleOverwrittenError as ShuffleOverwrittenError,
)
from arrow_format.errors import (
    StorageError as StorageError,
)
from arrow_format.errors import (
    UnsettledCommitError as UnsettledCommitError,
)
