package io.dsgd;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Workers in processes of their own. */
class ProcessTest {
  /**
   * Trains two steps with the job of its environment, prints the digest; with `hang` it stays in a
   * step that never ends.
   */
  public static final class Worker {
    public static void main(String[] arguments) throws Exception {
      try (Session session = Dsgd.init()) {
        Parameter weight = session.addParameter("weight", DType.FLOAT32, 1000);
        Memory memory = session.addReplica().alloc(weight);
        session.start();
        memory.gradient().putFloat(0, session.rank());
        session.step(1);
        session.step(1);
        System.out.println(session.digest());
        if (arguments.length > 0) {
          session.getObject("nobody puts this");
        }
      }
    }
  }

  private static final String LEASE = "2s"; // short, as one worker is killed; equal everywhere

  private static ProcessBuilder java(List<String> options, String... command) throws Exception {
    List<String> words = new ArrayList<>();
    words.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
    words.addAll(
        List.of(
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "--enable-native-access=ALL-UNNAMED",
            "-cp",
            System.getProperty("java.class.path")));
    words.addAll(options);
    words.addAll(List.of(command));
    return new ProcessBuilder(words).redirectErrorStream(true);
  }

  private static Head head() throws Exception {
    return Head.start(Job.config("head", "127.0.0.1:0", "num_workers", "2", "lease", LEASE));
  }

  private static Process worker(Head head, String... arguments) throws Exception {
    List<String> command = new ArrayList<>(List.of(Worker.class.getName()));
    command.addAll(List.of(arguments));
    String natives = "-Ddsgd.library.path=" + System.getProperty("dsgd.library.path");
    ProcessBuilder builder = java(List.of(natives), command.toArray(new String[0]));
    builder.environment().put("DSGD_HEAD", head.address());
    builder.environment().put("DSGD_NUM_WORKERS", "2");
    builder.environment().put("DSGD_LEASE", LEASE);
    return builder.start();
  }

  private static String output(Process process) throws Exception {
    String text = new String(process.getInputStream().readAllBytes(), "UTF-8").strip();
    assertEquals(0, process.waitFor(), text);
    return text;
  }

  @Test
  void processesEndWithTheSameBits() throws Exception {
    try (Head head = head()) {
      Process first = worker(head);
      Process second = worker(head);
      String digest = output(first);
      assertTrue(digest.matches("-?\\d+"), digest);
      assertEquals(digest, output(second));
    }
  }

  @Test
  void killedWorkerIsNamedWithinTheLease() throws Exception {
    try (Head head = head()) {
      Process victim = worker(head, "hang");
      try (Session session = Dsgd.init(Job.worker(head, 2, "lease", LEASE));
          BufferedReader lines =
              new BufferedReader(new InputStreamReader(victim.getInputStream(), "UTF-8"))) {
        session.addReplica().alloc(session.addParameter("weight", DType.FLOAT32, 1000));
        session.start();
        session.step(1);
        session.step(1);
        assertTrue(lines.readLine().matches("-?\\d+"));
        Operation<Void> barrier = session.barrierAsync();
        victim.destroyForcibly();
        DsgdException e = Fails.with(Status.WORKER_LOST, barrier::join);
        assertEquals(1 - session.rank(), e.rank(), e.getMessage());
        assertThrows(DsgdException.class, () -> session.step(1));
      } finally {
        victim.destroyForcibly().waitFor();
      }
    }
  }

  @Test
  void missingNativesAreExplained(@TempDir Path empty) throws Exception {
    Process process = java(List.of("-Djava.library.path=" + empty), Worker.class.getName()).start();
    String text = new String(process.getInputStream().readAllBytes(), "UTF-8");
    assertEquals(1, process.waitFor(), text);
    assertTrue(text.contains("set -Ddsgd.library.path"), text);
  }

  @Test
  void aWrongFolderOfNativesIsNamed(@TempDir Path empty) throws Exception {
    Process process = java(List.of("-Ddsgd.library.path=" + empty), Version.class.getName()).start();
    String text = new String(process.getInputStream().readAllBytes(), "UTF-8");
    assertEquals(1, process.waitFor(), text);
    assertTrue(text.contains("set -Ddsgd.library.path to the folder that holds libdsgd_jni.so, not " + empty), text);
  }

  @Test
  void aSecondClassLoaderIsToldToShareTheFirst() throws Exception {
    Process process =
        java(
                List.of("-Ddsgd.library.path=" + System.getProperty("dsgd.library.path")),
                TwoLoaders.class.getName())
            .start();
    String text = output(process);
    assertTrue(text.contains("already loaded in another classloader; load dsgd in one class loader"), text);
  }

  @Test
  void nativesAreFoundOnTheLibraryPathAndInTheJar(@TempDir Path folder) throws Exception {
    Path natives = Path.of(System.getProperty("dsgd.library.path"));
    Process found =
        java(List.of("-Djava.library.path=" + natives), Version.class.getName()).start();
    assertEquals(Dsgd.versionString(), output(found));

    Path packed =
        Files.createDirectories(
            folder.resolve("io/dsgd/native/linux-" + System.getProperty("os.arch")));
    Path unpacked = Files.createDirectory(folder.resolve("tmp"));
    for (String name : List.of("libdsgd.so.1", "libdsgd_jni.so")) {
      Files.copy(natives.resolve(name), packed.resolve(name));
    }
    ProcessBuilder builder = java(List.of("-Djava.io.tmpdir=" + unpacked), Version.class.getName());
    builder.environment().put("CLASSPATH", "");
    int at = builder.command().indexOf("-cp") + 1;
    builder.command().set(at, folder + ":" + builder.command().get(at));
    assertEquals(Dsgd.versionString(), output(builder.start()));
    try (var left = Files.list(unpacked)) {
      assertEquals(
          List.of(),
          left.filter(file -> file.getFileName().toString().startsWith("dsgd-")).toList());
    }
  }

  /** Loads dsgd in the application's class loader, and then in another one. */
  public static final class TwoLoaders {
    public static void main(String[] arguments) throws Exception {
      Dsgd.versionString();
      URL[] classes = {Dsgd.class.getProtectionDomain().getCodeSource().getLocation()};
      try (URLClassLoader other = new URLClassLoader(classes, null)) {
        other.loadClass("io.dsgd.Dsgd").getMethod("versionString").invoke(null);
      } catch (InvocationTargetException e) {
        for (Throwable cause = e; cause != null; cause = cause.getCause()) {
          System.out.println(cause);
        }
      }
    }
  }

  public static final class Version {
    public static void main(String[] arguments) throws Exception {
      System.out.println(Dsgd.versionString());
    }
  }
}
