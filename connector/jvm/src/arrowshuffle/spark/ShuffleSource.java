package arrowshuffle.spark;

import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsCatalogOptions;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * {@code spark.read.format("arrow_shuffle_jvm").load(path)}: a table of a catalog that it sets up
 * itself, since Spark finds the function of a reported partitioning in a catalog alone.
 *
 * <p>The name {@code arrow_shuffle} stays the Python source's, which writes, streams and has all
 * options: a source of that name in a jar would hide it.
 */
public final class ShuffleSource implements SupportsCatalogOptions, DataSourceRegister {
  static final String NAME = "arrow_shuffle_jvm";
  static final String VERSION = "version";
  static final String VERSION_AS_OF = "versionAsOf"; // as Spark calls it
  static final String TIMESTAMP_AS_OF = "timestampAsOf";
  private static final String CATALOG = "arrow_shuffle_paths";

  @Override
  public String shortName() {
    return NAME;
  }

  @Override
  public String extractCatalog(CaseInsensitiveStringMap options) {
    SparkSession session = SparkSession.active();
    String setting = "spark.sql.catalog." + CATALOG;
    if (session.conf().getOption(setting).isEmpty()) {
      session.conf().set(setting, ShuffleCatalog.class.getName());
    }
    return CATALOG;
  }

  @Override
  public Identifier extractIdentifier(CaseInsensitiveStringMap options) {
    return Identifier.of(new String[0], path(options));
  }

  private static String path(CaseInsensitiveStringMap options) {
    String path = options.get("path");
    if (path == null) {
      throw new IllegalArgumentException(
          "no path was given: spark.read.format(\"" + NAME + "\").load(\"/data/orders\")");
    }
    return path.contains("/") ? path : "./" + path; // else it were the name of a table
  }

  /** A number, the name of a tag, or a time with a zone. */
  private static String version(CaseInsensitiveStringMap options) {
    return options.getOrDefault(VERSION, options.get(VERSION_AS_OF));
  }

  @Override
  public Optional<String> extractTimeTravelVersion(CaseInsensitiveStringMap options) {
    return Optional.ofNullable(version(options));
  }

  @Override
  public Optional<String> extractTimeTravelTimestamp(CaseInsensitiveStringMap options) {
    return Optional.ofNullable(options.get(TIMESTAMP_AS_OF));
  }

  @Override
  public boolean supportsExternalMetadata() {
    return false;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return ShuffleCatalog.atPath(path(options), version(options)).schema();
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> options) {
    CaseInsensitiveStringMap all = new CaseInsensitiveStringMap(options);
    return ShuffleCatalog.atPath(path(all), version(all));
  }
}
