package arrowshuffle.format;

import java.io.IOException;
import java.io.Serializable;
import java.util.List;

/**
 * Files of a shuffle, by paths below its directory with '/', and of local roots, by absolute paths.
 */
public interface Storage extends Serializable {
  /** The shuffle's directory, for messages: a path or URI. */
  String location();

  /** All bytes of a file; java.io.FileNotFoundException where it is not there. */
  byte[] read(String path) throws IOException;

  /**
   * Ranges of bytes of a file, ascending, which do not overlap.
   *
   * @throws java.io.FileNotFoundException where the file is not there
   * @throws java.io.EOFException where it ends before a range does
   */
  byte[][] read(String path, long[] offsets, int[] lengths) throws IOException;

  /** Names of files and directories in a directory, in any order; none where it is not there. */
  List<String> list(String path) throws IOException;

  /** Whether there is a file or directory of a path. */
  boolean exists(String path) throws IOException;

  /** When a file was last written, milliseconds since 1970; -1 where that is not known. */
  long modifiedMs(String path) throws IOException;

  /**
   * Refuses a path of which a part is a symbolic link: below the shuffle's directory, or of an
   * absolute path its last {@code depth} parts. Object stores have none.
   *
   * @throws CorruptShuffleException where one is a link
   */
  void refuseLinks(String path, int depth) throws IOException;
}
