package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;

import java.io.IOException;
import java.util.BitSet;
import java.util.HashMap;
import java.util.Map;
import org.apache.arrow.vector.types.pojo.ArrowType;

/** Rows of a file that are gone. */
final class RowMask {
  private static final Layout[] PIECES = {
      Layout.of(new ArrowType.Int(32, true)), Layout.of(Layout.INT64), Layout.of(Layout.BINARY)};

  private final Map<Integer, BitSet> regions = new HashMap<>();

  private RowMask() {}

  /** Reads the mask of a file, if it has one, and checks it against the log. */
  static RowMask of(Storage storage, PartitionedFile file) throws IOException {
    RowMask mask = new RowMask();
    if (file.maskRows() == 0) {
      return mask;
    }
    byte[] frame = file.mask();
    String where = storage.location() + "/" + file.path() + ", its mask";
    if (!file.maskPath().isEmpty()) {
      where = storage.location() + "/" + file.maskPath() + ", mask of " + file.path();
      frame = Ranges.read(storage, file.maskPath(), file.maskOffset(), file.maskLength(), where);
    }
    check(frame.length == file.maskLength()
            && Bytes.crc32(frame, 0, frame.length) == file.maskCrc32(),
        where, "does not match the checksum of the log");
    mask.add(ArrowMessage.inFrame(frame, PIECES, where), file, where);
    return mask;
  }

  private void add(Column[] pieces, PartitionedFile file, String where)
      throws CorruptShuffleException {
    long masked = 0;
    long region = 0;
    long before = -1;
    for (int i = 0; i < pieces[0].count; i++) {
      long next = pieces[0].getLong(i);
      long first = pieces[1].getLong(i);
      check(next > region || next == region && first > before, where, "its pieces do not ascend");
      check(next < file.numRegions() && first >= 0 && first < file.storedRows()
              && first <= Integer.MAX_VALUE,
          where, "a row of no region");
      region = next;
      before = first;
      BitSet rows = regions.computeIfAbsent((int) region, of -> new BitSet());
      BitSet bits = BitSet.valueOf(pieces[2].getBytes(i));
      check(
          bits.length() <= file.storedRows() - first && bits.length() <= Integer.MAX_VALUE - first,
          where, "a row of no region");
      for (int bit = bits.nextSetBit(0); bit >= 0; bit = bits.nextSetBit(bit + 1)) {
        int row = (int) first + bit;
        check(!rows.get(row), where, "row " + row + " of region " + region + " twice");
        rows.set(row);
      }
      masked += bits.cardinality();
    }
    check(
        masked == file.maskRows(), where, masked + " rows, where the log says " + file.maskRows());
  }

  /** Masked rows of a region; null where there are none. */
  BitSet ofRegion(int region) {
    return regions.get(region);
  }

  /** How many rows of a region are masked. */
  int count(int region) {
    BitSet rows = regions.get(region);
    return rows == null ? 0 : rows.cardinality();
  }
}
