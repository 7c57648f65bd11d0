package arrowshuffle.format;

import java.io.Serializable;

/** A column that sorts rows, and how: see the page of the order. */
public record SortKey(String column, boolean descending, boolean nullsFirst)
    implements Serializable {}
