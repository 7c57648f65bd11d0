package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** The index of a partitioned file: its directory, which is read at once, and its blocks. */
final class IndexFile {
  private static final int TAIL = 16;
  private static final int MAGIC = 8;

  /** An index of at most so many bytes is read by one request. */
  private static final long SMALL = 64 << 10;

  private final Storage storage;
  private final String path;
  private final PartitionedFile file;
  private final int numSubpartitions;
  private final String where;

  /** All of a small index; else null. */
  private byte[] whole;

  private final List<Place> blocks = new ArrayList<>();

  /** Columns of the chunks. */
  final Columns columns;

  /** Position of each column of the version among those of the file; -1 where it lacks it. */
  final int[] positions;

  /** The columns with statistics, as positions among those of the file. */
  final int[] withBounds;

  /** Where the data file is. */
  final String dataPath;

  /** Where a block is, and what it has: rows of subpartitions of the index, from first to end. */
  record Place(long first, long end, long offset, long length, long crc32, long boundsOffset,
      long boundsLength, long boundsCrc32) {}

  /** Reads the directory, and checks it against log and version. */
  IndexFile(Storage storage, Shape shape, PartitionedFile file) throws IOException {
    this.storage = storage;
    this.file = file;
    numSubpartitions = shape.numSubpartitions();
    String root = file.root();
    String base = root.isEmpty() ? file.path() : root + "/" + file.path();
    dataPath = base + ".shuffle.data";
    path = base + ".shuffle.index";
    where = nameOf(path);
    refuseLinks(root);
    Json directory = directory();
    check(directory.text("job_id").equals(file.jobId()), where, "is of another job");
    checkSame(directory, "map_task", file.mapTask());
    checkSame(directory, "attempt", file.attempt());
    checkSame(directory, "num_subpartitions", file.numSubpartitions());
    checkSame(directory, "data_bytes", file.dataBytes());
    columns = shape.columnsOf(directory.octets("data_schema"), file.columnIds(), where);
    positions = Columns.positions(shape.columns(), columns, where);
    checkOrder(shape, directory);
    withBounds = withBounds(directory);
    for (Json.Row row : directory.rows("blocks", 0, 8)) {
      long[] of = row.numbers();
      Place place = new Place(of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7]);
      check(place.first < place.end && place.end <= file.numSubpartitions(), where,
          "a block of subpartitions " + place.first + " to " + place.end);
      blocks.add(place);
    }
  }

  /** A file below the shuffle's directory or a root, for messages. */
  String nameOf(String path) {
    return path.startsWith("/") ? path : storage.location() + "/" + path;
  }

  private void refuseLinks(String root) throws IOException {
    int depth = file.path().split("/").length;
    if (!root.isEmpty()) {
      depth++; // the root itself, too
      String marker = root + "/arrow-shuffle-root.json";
      storage.refuseLinks(marker, 2);
      try {
        byte[] content = storage.read(marker);
        String job = Json.object(content, 0, content.length, marker).text("job_id");
        check(job.equals(file.jobId()), marker, "is of job " + job);
      } catch (FileNotFoundException error) {
        throw new CorruptShuffleException(marker + ": is not there", error);
      }
    }
    storage.refuseLinks(path, depth);
    storage.refuseLinks(dataPath, depth);
  }

  private Json directory() throws IOException {
    long length = file.directoryBytes();
    long offset = file.indexBytes() - TAIL - length;
    check(offset >= MAGIC && length > 0, where,
        "has " + file.indexBytes() + " bytes, and a directory of " + length);
    byte[] frame;
    int at = 0;
    if (file.indexBytes() <= SMALL) {
      whole = frame = read(new long[] {0}, new long[] {file.indexBytes()})[0];
      at = (int) offset;
    } else {
      frame = read(new long[] {offset}, new long[] {length})[0];
    }
    check(Bytes.crc32(frame, at, (int) length) == file.directoryCrc32(), where,
        "its directory does not match the checksum of the log");
    byte[] text = ZstdFrames.content(frame, at, (int) length, where + ", directory");
    return Json.ofThisVersion(text, 0, text.length, where + ", directory");
  }

  private byte[][] read(long[] offsets, long[] lengths) throws IOException {
    int[] sizes = new int[lengths.length];
    for (int i = 0; i < sizes.length; i++) {
      check(lengths[i] < Integer.MAX_VALUE - 8, where, "a part of " + lengths[i] + " bytes");
      sizes[i] = (int) lengths[i];
    }
    return Ranges.read(storage, path, offsets, sizes, where);
  }

  private void checkSame(Json directory, String key, long expected) throws CorruptShuffleException {
    check(directory.natural(key) == expected, where,
        key + " is " + directory.natural(key) + ", and " + expected + " in the log");
  }

  private void checkOrder(Shape shape, Json directory) throws CorruptShuffleException {
    List<SortKey> order = new ArrayList<>();
    for (SortKey key : Shape.sortKeys(directory, where)) {
      int id = columns.ids[columns.positionOf(key.column(), where)][0];
      int at = shape.columns().positionOf(id);
      String name = at < 0 ? "" : shape.columns().fields.get(at).getName();
      order.add(new SortKey(name, key.descending(), key.nullsFirst()));
    }
    check(order.equals(shape.sortBy()), where,
        "is sorted by " + order + ", and its version by " + shape.sortBy());
  }

  private int[] withBounds(Json directory) throws CorruptShuffleException {
    List<String> names = directory.texts("statistics");
    int[] found = new int[names.size()];
    Set<String> seen = new HashSet<>();
    for (int i = 0; i < found.length; i++) {
      found[i] = columns.positionOf(names.get(i), where);
      check(columns.layouts[found[i]].hasBounds() && seen.add(names.get(i)), where,
          "statistics of column " + names.get(i) + " twice, or of a type that has none");
    }
    return found;
  }

  /** How many blocks there are. */
  int numBlocks() {
    return blocks.size();
  }

  /** Reads and checks the blocks that may have wanted rows, with their statistics if asked for. */
  List<IndexBlock> blocks(Subpartitions wanted, boolean bounds) throws IOException {
    List<Place> found =
        blocks.stream().filter(block -> wanted.hasAny(block.first, block.end)).toList();
    long[] offsets = new long[2 * found.size()];
    long[] lengths = new long[offsets.length];
    for (int i = 0; i < found.size(); i++) {
      offsets[2 * i] = found.get(i).offset;
      lengths[2 * i] = found.get(i).length;
      offsets[2 * i + 1] = found.get(i).boundsOffset;
      lengths[2 * i + 1] = bounds ? found.get(i).boundsLength : 0;
    }
    byte[][] parts = parts(offsets, lengths);
    List<IndexBlock> decoded = new ArrayList<>();
    for (int i = 0; i < found.size(); i++) {
      Place place = found.get(i);
      String name = where + ", block of subpartitions " + place.first + " to " + place.end;
      check(crc32(parts[2 * i]) == place.crc32, name, "does not match its checksum");
      IndexBlock block =
          new IndexBlock(parts[2 * i], place, file, numSubpartitions, columns.layouts.length, name);
      if (parts[2 * i + 1].length > 0) {
        check(crc32(parts[2 * i + 1]) == place.boundsCrc32, name,
            "its statistics do not match their checksum");
        block.bounds = bounds(parts[2 * i + 1], block, name + ", statistics");
      }
      decoded.add(block);
    }
    return decoded;
  }

  private static long crc32(byte[] bytes) {
    return Bytes.crc32(bytes, 0, bytes.length);
  }

  private Column[] bounds(byte[] frame, IndexBlock block, String name)
      throws CorruptShuffleException {
    Layout[] of = new Layout[3 * withBounds.length];
    for (int i = 0; i < withBounds.length; i++) {
      of[3 * i] = of[3 * i + 1] = Layout.nullable(columns.layouts[withBounds[i]].type);
      of[3 * i + 2] = Layout.of(Layout.INT64);
    }
    check(of.length > 0, name, "and the directory names no column");
    Column[] found = ArrowMessage.inFrame(frame, of, name);
    check(found[0].count == block.numChunks, name,
        found[0].count + " rows for " + block.numChunks + " chunks");
    return found;
  }

  /** Parts of the index in any order, those without bytes too. */
  private byte[][] parts(long[] offsets, long[] lengths) throws IOException {
    byte[][] found = new byte[offsets.length][];
    Integer[] order = new Integer[offsets.length];
    for (int i = 0; i < order.length; i++) {
      order[i] = i;
      boolean isInside = lengths[i] == 0
          || lengths[i] <= file.indexBytes() && offsets[i] <= file.indexBytes() - lengths[i];
      check(isInside, where, "a part at byte " + offsets[i] + " is behind its end");
    }
    Arrays.sort(order, Comparator.comparingLong(i -> offsets[i]));
    List<Integer> asked = new ArrayList<>();
    for (int i : order) {
      if (lengths[i] == 0) {
        found[i] = new byte[0];
      } else if (whole != null) {
        found[i] = Arrays.copyOfRange(whole, (int) offsets[i], (int) (offsets[i] + lengths[i]));
      } else {
        asked.add(i);
      }
    }
    for (int from = 0, to = 0; from < asked.size(); from = to) {
      long end = 0;
      for (; to < asked.size() && offsets[asked.get(to)] >= end; to++) {
        end = offsets[asked.get(to)] + lengths[asked.get(to)];
      }
      List<Integer> apart = asked.subList(from, to); // of parts, which may overlap
      byte[][] read = read(apart.stream().mapToLong(i -> offsets[i]).toArray(),
          apart.stream().mapToLong(i -> lengths[i]).toArray());
      for (int i = 0; i < read.length; i++) {
        found[apart.get(i)] = read[i];
      }
    }
    return found;
  }
}
