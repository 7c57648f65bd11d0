package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;

import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;

/** Reads committed files, of which one that is missing or too short is damage. */
final class Ranges {
  private Ranges() {}

  /** Ranges of bytes, ascending, which do not overlap. */
  static byte[][] read(Storage storage, String path, long[] offsets, int[] lengths, Object where)
      throws IOException {
    try {
      return storage.read(path, offsets, lengths);
    } catch (FileNotFoundException error) {
      throw new CorruptShuffleException(where + ": is not there, and was committed", error);
    } catch (EOFException error) {
      throw new CorruptShuffleException(where + ": is shorter than it was committed", error);
    }
  }

  /** One range of a file below the shuffle's directory, which is no link. */
  static byte[] read(Storage storage, String path, long offset, long length, Object where)
      throws IOException {
    check(length < Integer.MAX_VALUE - 8, where, "has " + length + " bytes");
    storage.refuseLinks(path, path.split("/").length);
    return read(storage, path, new long[] {offset}, new int[] {(int) length}, where)[0];
  }
}
