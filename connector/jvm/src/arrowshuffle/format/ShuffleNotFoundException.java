package arrowshuffle.format;

import java.io.IOException;

/** There is no committed shuffle at a path, or no such version: it expired, or was released. */
public final class ShuffleNotFoundException extends IOException {
  private static final long serialVersionUID = 1;

  /** The message says why, and what can be opened. */
  public ShuffleNotFoundException(String message) {
    super(message);
  }
}
