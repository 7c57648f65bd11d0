package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;

/** Columns from packed ones, as the page of packed columns describes them. */
final class PackedColumn {
  private static final int NODE = 16;
  private static final int MOST_DIGITS = 15;

  private final byte[] bytes;
  private final Ends ends;
  private final Object where;
  private int node;
  private long at;
  private final long end;

  private PackedColumn(byte[] bytes, int at, int length, int nodes, Ends ends, Object where) {
    this.bytes = bytes;
    this.ends = ends;
    this.where = where;
    this.node = at;
    this.at = at + (long) NODE * nodes;
    this.end = at + (long) length;
  }

  /**
   * The column in some bytes, without a copy.
   *
   * @param length all bytes of the column
   * @throws CorruptShuffleException where these are not those of so many values
   */
  static Column of(byte[] bytes, int at, int length, Layout layout, int count, Ends ends,
      Object where) throws CorruptShuffleException {
    PackedColumn packed = new PackedColumn(bytes, at, length, layout.nodes, ends, where);
    check(packed.at <= packed.end, where, "is shorter than its nodes");
    Column column = packed.next(layout, count);
    check(packed.at == packed.end, where, "is longer than its buffers");
    return column;
  }

  private Column next(Layout of, long values) throws CorruptShuffleException {
    int flags = bytes[node] & 0xff;
    int width = bytes[node + 1] & 0xff;
    int digits = bytes[node + 2] & 0xff;
    long base = Bytes.int64(bytes, node + 8);
    node += NODE;
    boolean isFlag = flags == 0 || flags == 1 && of.kind != Layout.Kind.NULL;
    check(isFlag && values <= Integer.MAX_VALUE, where,
        "a node of flags " + flags + " and " + values + " values");
    int count = (int) values;
    int validity = flags == 0 ? -1 : buffer((count + 7L) / 8);
    boolean isPlain = width == Column.PLAIN;
    switch (of.kind) {
      case TEXT, LIST, MAP:
        return withEnds(of, count, validity, width, base);
      case NUMBER:
        if (!isPlain) {
          checkWidth((width == 1 || width == 2 || width == 4 || width == 8) && width <= of.width,
              of, width);
        }
        break;
      case DOUBLE:
        if (!isPlain) {
          checkWidth((width == 1 || width == 2 || width == 4) && digits <= MOST_DIGITS, of, width);
        }
        break;
      default:
        checkWidth(isPlain, of, width);
    }
    int place = (int) at;
    switch (of.kind) {
      case BOOLEAN:
        buffer((count + 7L) / 8);
        break;
      case NUMBER, DOUBLE, FIXED:
        buffer((long) count * (isPlain ? of.width : width));
        break;
      default:
    }
    boolean isList = of.kind == Layout.Kind.FIXED_LIST;
    Column[] inside = new Column[of.inside.length];
    for (int i = 0; i < inside.length; i++) {
      inside[i] = next(of.inside[i], isList ? (long) count * of.width : count);
    }
    return new Column(of, count, bytes, validity, width, place, base, digits, null, inside);
  }

  private void checkWidth(boolean holds, Layout of, int width) throws CorruptShuffleException {
    if (!holds) {
      throw Checks.damage(
          where, "a node of width " + width + " or its digits, which " + of.type + " has not");
    }
  }

  private Column withEnds(Layout of, int count, int validity, int width, long base)
      throws CorruptShuffleException {
    checkWidth((width == 1 || width == 2 || width == 4) && base >= 0 && base <= Integer.MAX_VALUE,
        of, width);
    int lengths = buffer((long) count * width);
    int[] found = ends.of(count);
    long sum = found[0] = 0;
    switch (width) {
      case 1:
        for (int i = 0; i < count;) {
          sum += base + (bytes[lengths + i] & 0xff);
          found[++i] = (int) sum;
        }
        break;
      case 2:
        for (int i = 0; i < count;) {
          sum += base + (Bytes.int16(bytes, lengths + 2 * i) & 0xffff);
          found[++i] = (int) sum;
        }
        break;
      default:
        for (int i = 0; i < count;) {
          sum += base + (Bytes.int32(bytes, lengths + 4 * i) & 0xffffffffL);
          found[++i] = (int) sum;
        }
    }
    // Each is below 2^33 and there are fewer than 2^31: the sum is none that wrapped.
    check(sum <= Integer.MAX_VALUE, where, "lengths that add up to " + sum);
    if (of.kind == Layout.Kind.TEXT) {
      int place = buffer(sum);
      return new Column(of, count, bytes, validity, Column.PLAIN, place, 0, 0, found);
    }
    Column[] inside = new Column[of.inside.length];
    for (int i = 0; i < inside.length; i++) {
      inside[i] = next(of.inside[i], sum);
    }
    return new Column(of, count, bytes, validity, Column.PLAIN, 0, 0, 0, found, inside);
  }

  /** Position of the next buffer, of so many bytes and padding. */
  private int buffer(long length) throws CorruptShuffleException {
    long place = at;
    at += Bytes.padded(length);
    check(at <= end, where, "is shorter than its buffers");
    return (int) place;
  }
}
