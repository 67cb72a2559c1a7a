import io.dsgd.DType;
import io.dsgd.Dsgd;
import io.dsgd.DsgdException;
import io.dsgd.Memory;
import io.dsgd.Parameter;
import io.dsgd.Session;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.jar.JarFile;

/** Uses nothing but a bundled jar: takes a step, and looks at which libraries that loaded. */
public final class JarCheck {
  /** A phrase from the licence of the project and of each library that is inside the jar. */
  private static final String[][] LICENSES = {
    {"LICENSE", "Apache License"},
    {"capnproto.txt", "Sandstorm Development Group"},
    {"libuv.txt", "Joyent"},
    {"libsodium.txt", "Frank Denis"},
    {"xxhash.txt", "Yann Collet"},
    {"nlohmann_json.txt", "Niels Lohmann"},
  };

  public static void main(String[] arguments) throws Exception {
    try (Session session = Dsgd.init()) {
      Parameter weight = session.addParameter("weight", DType.FLOAT32, 1);
      Memory memory = session.addReplica("cpu").alloc(weight);
      session.setOptimizer("sgd", "lr=1");
      session.start();
      memory.gradient().putFloat(0, 3);
      session.step(1);
      check(memory.value().getFloat(0) == -3, "the step gave " + memory.value().getFloat(0));
    }
    try (Session session = Dsgd.init()) {
      session.addReplica("cuda:0");
    } catch (DsgdException e) { // the jar has no plug-in for GPUs
      check(
          !e.getMessage().contains(System.getProperty("java.io.tmpdir")),
          "a message names the folder that the natives were unpacked to: " + e.getMessage());
    }
    List<String> maps = Files.readAllLines(Path.of("/proc/self/maps"));
    for (String name : List.of("libdsgd.so.1", "libdsgd_jni.so")) {
      check(maps.stream().anyMatch(line -> line.contains(name)), name + " is not loaded");
    }
    for (String name : List.of("libcapnp", "libkj", "libuv", "libsodium")) {
      check(
          maps.stream().noneMatch(line -> line.contains(name)),
          name + " is loaded but should be inside");
    }
    for (String[] license : LICENSES) {
      try (InputStream text = Session.class.getResourceAsStream("/META-INF/licenses/" + license[0])) {
        check(text != null, "the jar has no META-INF/licenses/" + license[0]);
        check(
            new String(text.readAllBytes(), StandardCharsets.UTF_8).contains(license[1]),
            license[0] + " does not name " + license[1]);
      }
    }
    Path jar = Path.of(Session.class.getProtectionDomain().getCodeSource().getLocation().toURI());
    try (JarFile file = new JarFile(jar.toFile())) {
      check(file.isMultiRelease(), "the jar is not multi-release");
      String segments = "META-INF/versions/22/io/dsgd/Segments.class";
      check(file.getEntry(segments) != null, "the jar has no " + segments);
    }
    System.out.println("dsgd " + Dsgd.versionString() + " works from the jar alone");
  }

  private static void check(boolean right, String message) {
    if (!right) {
      throw new AssertionError(message);
    }
  }
}
