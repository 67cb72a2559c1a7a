package io.dsgd;

/**
 * One row of the table of configuration keys. Later versions may add components.
 *
 * @param name such as {@code heartbeat_interval}
 * @param type {@code string}, {@code integer}, {@code duration}, {@code size}, {@code switch} or
 *     {@code choice}
 * @param defaultValue as it would be written
 * @param range {@code 1..65536}, {@code simple | ps | allreduce}, or empty
 * @param help one or more sentences
 * @param environment such as {@code DSGD_HEARTBEAT_INTERVAL}
 */
public record ConfigKey(
    String name, String type, String defaultValue, String range, String help, String environment) {
  @Override
  public String toString() {
    return name;
  }
}
