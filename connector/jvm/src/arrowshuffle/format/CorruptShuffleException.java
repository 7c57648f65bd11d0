package arrowshuffle.format;

import java.io.IOException;

/** A committed file is damaged, truncated, missing, or not the one that was committed. */
public final class CorruptShuffleException extends IOException {
  private static final long serialVersionUID = 1;

  /** The message says what is wrong, and names the file, its region and column. */
  public CorruptShuffleException(String message) {
    super(message);
  }

  /** With what a storage or parser said. */
  public CorruptShuffleException(String message, Throwable cause) {
    super(message, cause);
  }
}
