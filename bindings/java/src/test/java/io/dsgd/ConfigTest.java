package io.dsgd;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ConfigTest {
  @Test
  void versionIsThatOfTheLibrary() {
    assertEquals(
        Dsgd.versionString(),
        Dsgd.version() / 10000 + "." + Dsgd.version() / 100 % 100 + "." + Dsgd.version() % 100);
  }

  @Test
  void tableOfKeysIsCompleteAndSorted() {
    List<ConfigKey> keys = Dsgd.configKeys();
    List<String> names = keys.stream().map(ConfigKey::name).toList();
    assertEquals(names.stream().sorted().toList(), names);
    ConfigKey lease = keys.get(names.indexOf("lease"));
    assertEquals("duration", lease.type());
    assertEquals("10s", lease.defaultValue());
    assertEquals("DSGD_LEASE", lease.environment());
    assertTrue(lease.range().length() > 0 && lease.help().length() > 0, lease.toString());
  }

  @Test
  void setsAndGetsKeys() {
    try (Config config = new Config()) {
      assertEquals("10s", config.get("lease"));
      assertEquals("2s", config.set("lease", "2s").get("lease"));
      assertEquals("3", config.set("num_workers", 3).get("num_workers"));
      assertNull(config.get("no_such_key"));
    }
  }

  @Test
  void unknownKeyNamesTheNearest() {
    try (Config config = new Config()) {
      DsgdException e =
          Fails.with(Status.INVALID_ARGUMENT, () -> config.set("leese", "1s"));
      assertEquals(Status.INVALID_ARGUMENT, e.status());
      assertTrue(
          e.getMessage().contains("leese") && e.getMessage().contains("'lease'"), e.getMessage());
    }
  }

  @Test
  void badValueIsNamed() {
    try (Config config = new Config()) {
      DsgdException e =
          Fails.with(Status.INVALID_ARGUMENT, () -> config.set("lease", "soon"));
      assertTrue(
          e.getMessage().contains("lease") && e.getMessage().contains("soon"), e.getMessage());
      assertEquals("10s", config.get("lease"));
    }
  }

  @Test
  void nullsAreRefused() {
    try (Config config = new Config()) {
      Fails.with(Status.INVALID_ARGUMENT, () -> config.set(null, "1"));
      DsgdException e =
          Fails.with(Status.INVALID_ARGUMENT, () -> config.set("lease", null));
      assertTrue(e.getMessage().contains("'lease'") && e.getMessage().contains("; give"), e.getMessage());
      Fails.with(Status.INVALID_ARGUMENT, () -> config.load(null));
      assertNull(config.get(null));
    }
  }

  @Test
  void loadsAFile(@TempDir Path folder) throws Exception {
    Path file = Files.writeString(folder.resolve("jöb.conf"), "# a comment\nlease = 3s\n");
    try (Config config = new Config().load(file)) {
      assertEquals("3s", config.get("lease"));
      Fails.with(Status.NOT_FOUND, () -> config.load(folder.resolve("missing.conf")));
    }
  }

  @Test
  void textKeepsEveryCharacter() {
    try (Config config = new Config()) {
      String token = "naïve – 例 \uD83D\uDE00"; // two, three and four bytes in UTF-8
      assertEquals(token, config.set("token", token).get("token"));
      assertEquals("?", config.set("token", "\uD83D").get("token"), "half a surrogate pair");
      DsgdException e =
          Fails.with(Status.INVALID_ARGUMENT, () -> config.set("token", "a\0b"));
      assertTrue(e.getMessage().contains("U+0000"), e.getMessage());
    }
  }

  @Test
  void closedConfigurationIsRefused() {
    Config config = new Config();
    config.close();
    config.close();
    Fails.with(Status.CLOSED, () -> config.set("lease", "1s"));
    Fails.with(Status.CLOSED, () -> config.get("lease"));
    Fails.with(Status.CLOSED, () -> Dsgd.init(config));
    Fails.with(Status.CLOSED, () -> Head.start(config));
  }
}
