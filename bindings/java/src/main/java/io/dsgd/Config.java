package io.dsgd;

import java.nio.file.Path;
import java.util.function.LongConsumer;

/**
 * How to join a job: string keys with string values. A value comes from {@link #set}, else from the
 * environment ({@code DSGD_HEARTBEAT_INTERVAL} for {@code heartbeat_interval}), else from a file,
 * else from the default. {@link Dsgd#configKeys} lists the keys. May be used for several sessions,
 * and closed or dropped after {@link Dsgd#init}.
 */
public final class Config implements AutoCloseable {
  private final Handle handle;

  /** A configuration with what the environment holds at this moment. */
  public Config() {
    long config = Raw.dsgd_config_new();
    if (config == 0) {
      throw DsgdException.ofCode(Status.NO_MEMORY.code, "new Config()");
    }
    handle = new Handle(config, "the configuration", Raw::dsgd_config_free);
    Natives.CLEANER.register(this, handle::close);
  }

  /** Sets one key; the message of an unknown key names the nearest one. */
  public synchronized Config set(String key, String value) {
    if (key == null || value == null) {
      throw DsgdException.invalid(
          "configuration key '" + key + "' has the value " + value + "; give a key and its value");
    }
    handle.use(c -> Raw.dsgd_config_set(c, key, value));
    return this;
  }

  /** Sets one key to a number. */
  public Config set(String key, long value) {
    return set(key, Long.toString(value));
  }

  /** Reads "key = value" lines from a file; nothing is set if one line fails. */
  public synchronized Config load(Path file) {
    handle.use(c -> Raw.dsgd_config_load(c, file == null ? null : file.toString()));
    return this;
  }

  /** Effective value of a key; null if there is no such key. */
  public synchronized String get(String key) {
    return handle.get(c -> Raw.dsgd_config_value(c, key));
  }

  /** Frees it now; the collector would do so later. Closing twice is fine. */
  @Override
  public void close() {
    handle.close();
  }

  /** Calls C with a configuration, or with NULL for null. */
  static void with(Config config, LongConsumer use) {
    if (config == null) {
      use.accept(0);
    } else {
      config.handle.use(use);
    }
  }
}
