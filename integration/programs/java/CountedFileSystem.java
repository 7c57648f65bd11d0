import java.io.IOException;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.function.IntFunction;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

/**
 * An object store for tests, {@code counted:/path}: local files that only this file system opens.
 * It writes a line for each request to {@code fs.counted.log}, waits {@code fs.counted.delay.ms},
 * and fails a read of a file whose name contains {@code fs.counted.fail}.
 */
public final class CountedFileSystem extends RawLocalFileSystem {
  private Configuration settings;

  @Override
  public void initialize(URI uri, Configuration configuration) throws IOException {
    super.initialize(uri, configuration);
    settings = configuration;
  }

  @Override
  public URI getUri() {
    return URI.create("counted:///");
  }

  @Override
  public String getScheme() {
    return "counted";
  }

  private void count(String what, Path path) throws IOException {
    String line = what + " " + path.getName() + "\n";
    Files.write(Paths.get(settings.get("fs.counted.log")), line.getBytes(StandardCharsets.UTF_8),
        StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    try {
      Thread.sleep(settings.getInt("fs.counted.delay.ms", 0));
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  @Override
  public FileStatus[] listStatus(Path path) throws IOException {
    count("list", path);
    return super.listStatus(path);
  }

  @Override
  public FSDataInputStream open(Path path, int bufferSize) throws IOException {
    String failing = settings.get("fs.counted.fail", "");
    if (!failing.isEmpty() && path.getName().contains(failing)) {
      throw new IOException("503 Slow Down: " + path);
    }
    FSDataInputStream opened = super.open(path, bufferSize);
    return new FSDataInputStream(opened.getWrappedStream()) {
      @Override
      public void readVectored(List<? extends FileRange> ranges, IntFunction<ByteBuffer> allocate)
          throws IOException {
        count("ranges", path);
        super.readVectored(ranges, allocate);
      }

      @Override
      public void readFully(long position, byte[] into, int offset, int length) throws IOException {
        count("whole", path);
        super.readFully(position, into, offset, length);
      }

      @Override
      public void readFully(long position, byte[] into) throws IOException {
        readFully(position, into, 0, into.length);
      }
    };
  }
}
