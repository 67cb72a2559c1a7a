package io.dsgd;

/** One row of the table of configuration keys. */
public final class ConfigKey {
  private final String[] row;

  ConfigKey(String[] row) {
    this.row = row;
  }

  /** Such as {@code heartbeat_interval}. */
  public String name() {
    return row[0];
  }

  /** {@code string}, {@code integer}, {@code duration}, {@code size}, {@code switch} or {@code choice}. */
  public String type() {
    return row[1];
  }

  /** As it would be written. */
  public String defaultValue() {
    return row[2];
  }

  /** {@code 1..65536}, {@code simple | ps | allreduce}, or empty. */
  public String range() {
    return row[3];
  }

  /** One sentence. */
  public String help() {
    return row[4];
  }

  /** Such as {@code DSGD_HEARTBEAT_INTERVAL}. */
  public String environment() {
    return row[5];
  }

  @Override
  public String toString() {
    return name();
  }
}
