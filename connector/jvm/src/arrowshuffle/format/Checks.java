package arrowshuffle.format;

/** What a reader makes of bytes that are none of the format. */
final class Checks {
  private Checks() {}

  /** Refuses as damage what does not hold; {@code where} names a file, or a place in one. */
  static void check(boolean holds, Object where, String what) throws CorruptShuffleException {
    if (!holds) {
      throw damage(where, what);
    }
  }

  /** The error of damage. */
  static CorruptShuffleException damage(Object where, String what) {
    return new CorruptShuffleException(where + ": " + what);
  }

  /** The error of what a parser could not follow, though checksums fit. */
  static CorruptShuffleException malformed(Object where, Exception cause) {
    return new CorruptShuffleException(where + ": is not of this format (" + cause + ")", cause);
  }

  /** The error of what only later releases know. */
  static FormatVersionException newer(Object where, String what) {
    return new FormatVersionException(where + ": has " + what
        + ", which this reader of arrow-shuffle does not know; use a newer one");
  }
}
