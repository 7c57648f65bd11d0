package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;
import static arrowshuffle.format.Checks.malformed;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.arrow.flatbuf.Buffer;
import org.apache.arrow.flatbuf.FieldNode;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.RecordBatch;

/** Columns of an encapsulated Arrow IPC record batch message, which has no schema. */
final class ArrowMessage {
  private static final int CONTINUATION = -1;
  private static final int METADATA = 8;

  private final byte[] bytes;
  private final RecordBatch batch;
  private final int body;
  private final long bodyEnd;
  private final Ends ends;
  private final Object where;
  private int node;
  private int buffer;

  private ArrowMessage(byte[] bytes, int at, int length, Ends ends, Object where)
      throws CorruptShuffleException {
    this.bytes = bytes;
    this.ends = ends;
    this.where = where;
    Message message = header(bytes, at, length, MessageHeader.RecordBatch, where);
    batch = (RecordBatch) message.header(new RecordBatch());
    check(batch != null && batch.compression() == null, where, "has BodyCompression");
    int size = METADATA + Bytes.int32(bytes, at + 4);
    body = at + size;
    bodyEnd = message.bodyLength();
    check(bodyEnd >= 0 && bodyEnd <= length - size, where, "a body of " + bodyEnd + " bytes");
  }

  /**
   * The metadata of an encapsulated message of one kind.
   *
   * @throws CorruptShuffleException where it is none of that kind
   * @throws IndexOutOfBoundsException where it leads out of itself, also when it is used later
   */
  static Message header(byte[] bytes, int at, int length, byte kind, Object where)
      throws CorruptShuffleException {
    check(length >= METADATA && Bytes.int32(bytes, at) == CONTINUATION, where, "is no message");
    int size = Bytes.int32(bytes, at + 4);
    check(size > 0 && size <= length - METADATA, where, "a message of " + size + " bytes");
    ByteBuffer metadata = ByteBuffer.wrap(bytes, at + METADATA, size).slice();
    Message message = Message.getRootAsMessage(metadata.order(ByteOrder.LITTLE_ENDIAN));
    check(message.headerType() == kind, where, "a message of kind " + message.headerType());
    return message;
  }

  /**
   * The columns of a message, of these layouts; their positions are of {@code bytes}.
   *
   * @throws CorruptShuffleException where it is none, is compressed, or leads out of itself
   */
  static Column[] columns(byte[] bytes, int at, int length, Layout[] layouts, Ends ends,
      Object where) throws CorruptShuffleException {
    try {
      ArrowMessage message = new ArrowMessage(bytes, at, length, ends, where);
      long rows = message.batch.length();
      check(rows >= 0 && rows < Integer.MAX_VALUE, where, "a batch of " + rows + " rows");
      Column[] columns = new Column[layouts.length];
      for (int i = 0; i < layouts.length; i++) {
        columns[i] = message.next(layouts[i], rows);
      }
      check(message.node == message.batch.nodesLength(), where,
          "a batch of " + message.batch.nodesLength() + " arrays, expected " + message.node);
      return columns;
    } catch (IndexOutOfBoundsException | NegativeArraySizeException | ArithmeticException error) {
      throw malformed(where, error);
    }
  }

  /** The columns of a message of one row or more. */
  static Column[] rows(byte[] message, Layout[] layouts, Object where)
      throws CorruptShuffleException {
    Column[] columns = columns(message, 0, message.length, layouts, new Ends(), where);
    check(columns[0].count > 0, where, "a batch without rows");
    return columns;
  }

  /** The same, in one zstd frame. */
  static Column[] inFrame(byte[] frame, Layout[] layouts, Object where)
      throws CorruptShuffleException {
    return rows(ZstdFrames.content(frame, 0, frame.length, where), layouts, where);
  }

  private Column next(Layout of, long rows) throws CorruptShuffleException {
    FieldNode field = nextNode();
    long length = field.length();
    check(length == rows, where, "a column of " + length + " values, expected " + rows);
    return values(of, (int) length, field.nullCount());
  }

  /** The array inside of another, with so many values or more. */
  private Column inside(Layout of, long atLeast) throws CorruptShuffleException {
    FieldNode field = nextNode();
    check(field.length() >= atLeast && field.length() < Integer.MAX_VALUE, where,
        "an array of " + field.length() + " values, expected " + atLeast);
    return values(of, (int) field.length(), field.nullCount());
  }

  private FieldNode nextNode() throws CorruptShuffleException {
    check(node < batch.nodesLength(), where, "fewer arrays than its columns need");
    return batch.nodes(node++);
  }

  private Column values(Layout of, int count, long nulls) throws CorruptShuffleException {
    check(nulls >= 0 && nulls <= count && (nulls == 0 || of.nullable), where,
        nulls + " nulls of " + count + " values");
    if (of.kind == Layout.Kind.NULL) {
      return new Column(of, count, bytes, -1, Column.PLAIN, 0, 0, 0, null);
    }
    int validity = nulls > 0 ? place((count + 7L) / 8) : skipped();
    return switch (of.kind) {
      case TEXT, LIST, MAP -> withEnds(of, count, validity);
      case STRUCT -> {
        Column[] fields = new Column[of.inside.length];
        for (int i = 0; i < fields.length; i++) {
          fields[i] = inside(of.inside[i], count);
        }
        yield new Column(of, count, bytes, validity, Column.PLAIN, 0, 0, 0, null, fields);
      }
      case FIXED_LIST -> {
        Column items = inside(of.inside[0], (long) count * of.width);
        yield new Column(of, count, bytes, validity, Column.PLAIN, 0, 0, 0, null, items);
      }
      case BOOLEAN -> {
        int at = place((count + 7L) / 8);
        yield new Column(of, count, bytes, validity, Column.PLAIN, at, 0, 0, null);
      }
      default -> {
        int at = place((long) count * of.width);
        yield new Column(of, count, bytes, validity, Column.PLAIN, at, 0, 0, null);
      }
    };
  }

  private Column withEnds(Layout of, int count, int validity) throws CorruptShuffleException {
    // Of no values Arrow may leave the one offset out.
    int offsets = place(count == 0 ? 0 : 4 * (count + 1L));
    int[] found = ends.of(count);
    int end = found[0] = count == 0 ? 0 : Bytes.int32(bytes, offsets);
    boolean ascend = end >= 0;
    for (int i = 1; i <= count; i++) {
      int next = found[i] = Bytes.int32(bytes, offsets + 4 * i);
      ascend &= next >= end;
      end = next;
    }
    check(ascend, where, "offsets that do not ascend");
    if (of.kind == Layout.Kind.TEXT) {
      int at = place(end);
      return new Column(of, count, bytes, validity, Column.PLAIN, at, 0, 0, found);
    } else if (of.kind == Layout.Kind.LIST) {
      Column items = inside(of.inside[0], end);
      return new Column(of, count, bytes, validity, Column.PLAIN, 0, 0, 0, found, items);
    }
    FieldNode pairs = nextNode();
    check(pairs.nullCount() == 0 && pairs.length() >= end, where, "the pairs of a map");
    skipped();
    Column keys = inside(of.inside[0], end);
    Column items = inside(of.inside[1], end);
    return new Column(of, count, bytes, validity, Column.PLAIN, 0, 0, 0, found, keys, items);
  }

  /** Position of the next buffer, which has so many bytes or more. */
  private int place(long length) throws CorruptShuffleException {
    check(buffer < batch.buffersLength(), where, "fewer buffers than its arrays need");
    Buffer next = batch.buffers(buffer++);
    check(next.offset() >= 0 && next.length() >= length && next.offset() <= bodyEnd
            && next.length() <= bodyEnd - next.offset(),
        where, "a buffer of " + next.length() + " bytes, expected " + length);
    return Math.toIntExact(body + next.offset());
  }

  /** Passes a bitmap of no nulls, which may be anywhere. */
  private int skipped() throws CorruptShuffleException {
    check(buffer++ < batch.buffersLength(), where, "fewer buffers than its arrays need");
    return -1;
  }
}
