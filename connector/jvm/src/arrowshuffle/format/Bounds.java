package arrowshuffle.format;

/** What is known of some rows: of a file, or of a chunk. */
public interface Bounds {
  /** How many rows there are; masked ones are among them. */
  long rows();

  /** What is known of the column with an id; null: nothing. */
  Bound of(int columnId);
}
