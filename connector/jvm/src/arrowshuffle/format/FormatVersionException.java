package arrowshuffle.format;

import java.io.IOException;

/** A later release wrote the files, or they use a feature that this reader does not know. */
public final class FormatVersionException extends IOException {
  private static final long serialVersionUID = 1;

  /** The message names the file, and what is not known of it. */
  public FormatVersionException(String message) {
    super(message);
  }
}
