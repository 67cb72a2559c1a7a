package dsgd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The tests' own program, run again as a worker.
func TestMain(m *testing.M) {
	if role := os.Getenv("GO_TEST_WORKER"); role != "" {
		if err := processWorker(role); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// processWorker joins as the environment says and trains; it says on stdout where it stands.
func processWorker(role string) error {
	session, err := Init(nil)
	if err != nil {
		return err
	}
	defer session.Close()
	p, err := session.AddParameter("p", Float32, []int{1000})
	if err != nil {
		return err
	}
	r, err := session.AddReplica("cpu")
	if err != nil {
		return err
	}
	buffers, err := Alloc[float32](r, p)
	if err != nil {
		return err
	}
	if err := session.Start(context.Background()); err != nil {
		return err
	}
	for step := 0; role == "forever" || step < 10; step++ {
		for i := range buffers.Gradient {
			buffers.Gradient[i] = float32(session.Rank() + i%7)
		}
		if _, err := session.Step(background, float64(session.Rank()+1)); err != nil {
			var failed *Error
			if errors.As(err, &failed) {
				fmt.Printf("error %s rank %d\n", failed.Status, failed.Rank)
			}
			return err
		}
		if step == 0 {
			fmt.Println("stepping as rank", session.Rank())
		}
	}
	digest, err := session.Digest()
	fmt.Printf("digest %x\n", digest)
	return err
}

type process struct {
	*exec.Cmd
	out *bufio.Scanner
}

func startProcess(t *testing.T, role, head string, rank, workers int) *process {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "GO_TEST_WORKER="+role, "DSGD_HEAD="+head, "DSGD_LEASE=500ms",
		fmt.Sprintf("DSGD_RANK=%d", rank), fmt.Sprintf("DSGD_NUM_WORKERS=%d", workers),
		"DSGD_INIT_TIMEOUT=30s", "DSGD_STEP_TIMEOUT=30s")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd, bufio.NewScanner(out)}
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	})
	return p
}

// line reads up to a line that begins with a word.
func (p *process) line(t *testing.T, begins string) string {
	t.Helper()
	var all []string
	for p.out.Scan() {
		if strings.HasPrefix(p.out.Text(), begins) {
			return p.out.Text()
		}
		all = append(all, p.out.Text())
	}
	t.Fatalf("the worker ended without a line '%s...'; it said %q", begins, all)
	return ""
}

func processHead(t *testing.T, workers string) *Head {
	t.Helper()
	head, err := StartHead(configure(t, bounded, settings{"head": "127.0.0.1:0", "num_workers": workers, "lease": "500ms"}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { head.Close() })
	return head
}

func TestWorkersInProcessesOfTheirOwn(t *testing.T) {
	head := processHead(t, "2")
	first, second := startProcess(t, "train", head.Address(), 0, 2), startProcess(t, "train", head.Address(), 1, 2)
	a, b := first.line(t, "digest"), second.line(t, "digest")
	if a != b {
		t.Errorf("the workers end with %s and %s", a, b)
	}
	for _, p := range []*process{first, second} {
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
	}
	if err := head.Wait(background); err != nil {
		t.Errorf("the job ended with %v", err)
	}
}

func TestAKilledWorkerIsNamed(t *testing.T) {
	head := processHead(t, "3")
	var all []*process
	for rank := 0; rank < 3; rank++ {
		all = append(all, startProcess(t, "forever", head.Address(), rank, 3))
	}
	for _, p := range all {
		p.line(t, "stepping")
	}
	if err := all[1].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, survivor := range []int{0, 2} {
		if got := all[survivor].line(t, "error"); got != "error ErrWorkerLost rank 1" {
			t.Errorf("rank %d says '%s'", survivor, got)
		}
	}
	if err := head.Wait(background); !errors.Is(err, ErrWorkerLost) {
		t.Errorf("the job ended with %v", err)
	}
}
