package arrowshuffle.spark;

import java.io.IOException;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The format {@code arrow_shuffle_jvm_probe}: one row that says which reader a session has.
 *
 * <p>Column {@code version} is that of the jar, as its manifest has it; null where the classes come
 * from elsewhere. With option {@code path}, column {@code error} is why the driver cannot open that
 * file or directory by Hadoop's file system; null where it can. No job runs, and Spark Connect
 * answers as well.
 */
public final class ReaderProbe implements TableProvider, DataSourceRegister {
  private static final StructType ROW =
      new StructType().add("version", DataTypes.StringType).add("error", DataTypes.StringType);

  /** Made by Spark. */
  public ReaderProbe() {}

  @Override
  public String shortName() {
    return "arrow_shuffle_jvm_probe";
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return ROW;
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitions, Map<String, String> options) {
    return new Answer();
  }

  /** The table of the row. */
  private static final class Answer implements Table, SupportsRead {
    @Override
    public String name() {
      return "arrow_shuffle_jvm_probe";
    }

    @Override
    @SuppressWarnings("deprecation") // abstract in Spark 4.0
    public StructType schema() {
      return ROW;
    }

    @Override
    public Column[] columns() {
      return new Column[] {Column.create("version", DataTypes.StringType),
          Column.create("error", DataTypes.StringType)};
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(TableCapability.BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      String path = options.get("path");
      return () -> new Row(path == null ? null : whyNotOpened(path));
    }
  }

  /** What Spark shows as a local table. */
  private record Row(String error) implements LocalScan {
    @Override
    public StructType readSchema() {
      return ROW;
    }

    @Override
    public InternalRow[] rows() {
      String version = ReaderProbe.class.getPackage().getImplementationVersion();
      Object[] values = {UTF8String.fromString(version), UTF8String.fromString(error)};
      return new InternalRow[] {new GenericInternalRow(values)};
    }
  }

  private static String whyNotOpened(String path) {
    Path file = new Path(path);
    try {
      SparkSession spark = SparkSession.active();
      FileSystem system = file.getFileSystem(spark.sessionState().newHadoopConf());
      if (system.getFileStatus(file).isFile()) {
        try (FSDataInputStream stream = system.open(file)) {
          stream.read();
        }
      }
      return null;
    } catch (IOException | RuntimeException error) { // whatever a file system of others throws
      return error.toString();
    }
  }
}
