package arrowshuffle.format;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;

/**
 * Reads the rows of some subpartitions of one file, chunk by chunk. For one thread.
 *
 * <p>Frames of several chunks are fetched by one request; only those with wanted columns are.
 */
public final class FileReader implements AutoCloseable {
  /** About what one request asks for. */
  private static final long FETCH_BYTES = 8 << 20;

  private final Storage storage;
  private final Shape shape;
  private final PartitionedFile file;
  private final Predicate<Bounds> mayMatch;
  private final IndexFile index;
  private final RowMask mask;
  private final ChunkDecoder decoder;

  /** Ids of the columns of the version that the file has. */
  private final Set<Integer> ids = new HashSet<>();

  private Selection selection;
  private List<Selection.Chunk> chunks = List.of();
  private final Deque<StoredFrames> fetched = new ArrayDeque<>();
  private int next;

  /**
   * Reads and checks the directory of the file's index, and its mask.
   *
   * @param columns positions of the wanted columns in the schema of the shape
   * @param mayMatch whether a chunk may have rows that are wanted, by its statistics; null: each
   * @throws CorruptShuffleException where the index is damaged, or has other columns
   * @throws FormatVersionException where a later release wrote it
   */
  public FileReader(Storage shuffle, Shape shape, PartitionedFile file, int[] columns,
      Predicate<Bounds> mayMatch) throws IOException {
    this.storage = shuffle;
    this.shape = shape;
    this.file = file;
    this.mayMatch = mayMatch;
    index = new IndexFile(shuffle, shape, file);
    mask = RowMask.of(shuffle, file);
    int[] stored = new int[columns.length];
    for (int i = 0; i < stored.length; i++) {
      stored[i] = index.positions[columns[i]];
    }
    for (int i = 0; i < index.positions.length; i++) {
      if (index.positions[i] >= 0) {
        ids.add(shape.columnId(i));
      }
    }
    decoder = new ChunkDecoder(index, stored);
  }

  /**
   * Begins to read some subpartitions of the version, and reads the blocks of the index that have
   * them.
   *
   * @param first the first subpartition, of those of the version
   * @param end the subpartition behind the last
   * @param among those of the range that are wanted; null: all
   */
  public void select(int first, int end, BitSet among) throws IOException {
    int n = shape.numSubpartitions();
    Subpartitions wanted = new Subpartitions(n, first, end, among);
    List<IndexBlock> blocks = index.blocks(wanted, mayMatch != null);
    boolean areAll = blocks.size() == index.numBlocks();
    selection = new Selection(blocks, areAll, wanted, file, mask, index.nameOf(index.dataPath));
    chunks = new ArrayList<>();
    for (Selection.Chunk chunk : selection.chunks()) {
      if (mayMatch == null || mayMatch.test(bounds(chunk))) {
        chunks.add(chunk);
      }
    }
    fetched.clear();
    next = 0;
  }

  /** What statistics say of a chunk. */
  private Bounds bounds(Selection.Chunk chunk) throws CorruptShuffleException {
    Column[] of = chunk.block.bounds;
    Map<Integer, Bound> known = new HashMap<>();
    int c = chunk.number;
    int rows = chunk.block.chunkRows[c];
    for (int i = 0; of != null && i < index.withBounds.length; i++) {
      long nulls = of[3 * i + 2].getLong(c);
      boolean hasBounds = !of[3 * i].isNull(c) || !of[3 * i + 1].isNull(c);
      Checks.check(nulls >= -1 && nulls <= rows && (nulls >= 0 || !hasBounds), chunk.block.where,
          "statistics of a chunk that has fewer rows");
      for (int k = 0; nulls >= 0 && k < index.positions.length; k++) {
        if (index.positions[k] == index.withBounds[i]) {
          Layout wanted = shape.columns().layouts[k];
          known.put(shape.columnId(k),
              BoundValues.bound(
                  value(of[3 * i], c), value(of[3 * i + 1], c), nulls, wanted, chunk.block.where));
        }
      }
    }
    return new PartitionedFile.FileRows(rows, ids, known);
  }

  private static byte[] value(Column of, int i) {
    return of.isNull(i) ? null : of.getBytes(i);
  }

  /**
   * The next chunk with wanted rows, in the order of the file; null: there are no more. What the
   * one before gave is used again.
   *
   * @throws CorruptShuffleException where the data file is missing or too short
   */
  public ChunkRows next() throws IOException {
    if (next == chunks.size()) {
      return null;
    }
    if (fetched.isEmpty()) {
      fetch();
    }
    next++;
    return new ChunkRows(selection, decoder, fetched.remove());
  }

  /** Fetches the frames of the next chunks by one request. */
  private void fetch() throws IOException {
    List<StoredFrames.Range> ranges = new ArrayList<>();
    long size = 0;
    for (int i = next; i < chunks.size() && (i == next || size < FETCH_BYTES); i++) {
      StoredFrames frames = decoder.wanted(chunks.get(i));
      ranges.addAll(frames.ranges);
      size += frames.numBytes();
      fetched.add(frames);
    }
    if (ranges.isEmpty()) {
      return;
    }
    long[] offsets = ranges.stream().mapToLong(range -> range.offset).toArray();
    int[] lengths = ranges.stream().mapToInt(range -> range.length).toArray();
    String where = index.nameOf(index.dataPath);
    byte[][] read = Ranges.read(storage, index.dataPath, offsets, lengths, where);
    for (int i = 0; i < read.length; i++) {
      ranges.get(i).bytes = read[i];
    }
  }

  @Override
  public void close() {
    chunks = List.of();
    fetched.clear();
    next = 0;
    decoder.close();
  }
}
