package arrowshuffle.format;

import java.io.IOException;

/** The wanted rows of a chunk, by columns; until the next chunk is asked for. */
public final class ChunkRows {
  private final Selection selection;
  private final Selection.Chunk chunk;
  private final StoredFrames frames;
  private final ChunkDecoder decoder;

  ChunkRows(Selection selection, ChunkDecoder decoder, StoredFrames frames) throws IOException {
    this.selection = selection;
    this.chunk = frames.chunk;
    this.frames = frames;
    this.decoder = decoder;
    decoder.begin(frames);
  }

  /** How many runs of rows there are; those between them are masked, or not wanted. */
  public int numRuns() {
    return chunk.endRun - chunk.firstRun;
  }

  /** The first row of a run, counted within the chunk. */
  public int from(int run) {
    return selection.from(chunk.firstRun + run);
  }

  /** The row behind a run, counted within the chunk. */
  public int to(int run) {
    return selection.to(chunk.firstRun + run);
  }

  /** The subpartition of the version that has the rows of a run; -1: each has them (broadcast). */
  public int subpartition(int run) {
    return selection.subpartition(chunk.firstRun + run);
  }

  /**
   * All values of the chunk of a wanted column, by its position among these; null: the file lacks
   * the column, and all values are null. It is decoded when it is first asked for.
   *
   * @throws CorruptShuffleException where its bytes are damaged
   */
  public Column column(int wanted) throws IOException {
    return decoder.column(frames, wanted);
  }

  /** File, region and place of the chunk, for messages. */
  public String where() {
    return decoder.where(chunk);
  }
}
